"""Scripted steps on one version: answers, verdicts, waits and metrics.

`upstream` shows what vLLM's own barrier does, `auto` what we make of it. In every scenario the
promise is held against the truth: the model sees which KV is wrong, and each request that was
served a token from it must have been told of.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq
from vllm.config import CUDAGraphMode

from moriio_observed.barrier import Era
from moriio_observed.demo.faults import FaultFile
from moriio_observed.upstream import TransferError
from tests.contract.on_each.decode import Asked, Decode
from tests.contract.on_each.engine import BLOCK_SIZE, LAYERS
from tests.contract.on_each.expected import (
    ADAPTIVE,
    ERA,
    FAILS_STEP,
    LOADS_AFTER,
    RECOVERS,
    UNPROTECTED_BY_UPSTREAM,
)

GetDecode = Callable[..., Decode]
Observed = Callable[..., None]

SLOW = {"rules": [{"latency_s": 0.3, "jitter_s": 0.1}]}
PROMPTS = [list(range(start, start + 40)) for start in range(10, 70, 10)]

both_barriers = pytest.mark.parametrize("barrier", ["auto", "upstream"])
both_runners = pytest.mark.parametrize("runner", ["V1", "V2"])


def harm(*rules: dict[str, Any]) -> dict[str, Any]:
    """Faults for the requests that come next, counted from 0; the others are slow."""
    return {"reset_ordinals": True, "rules": [*rules, *SLOW["rules"]]}


def ask_all(d: Decode, **how: Any) -> list[Asked]:
    return [d.ask(prompt, **how) for prompt in PROMPTS]


@both_runners
@both_barriers
def test_healthy(decode: GetDecode, barrier: str, runner: str) -> None:
    d = decode(barrier=barrier, runner=runner)
    asked = ask_all(d)
    d.serve()
    assert all(d.is_right(*asked))
    assert d.total("requests_total") == len(asked)
    assert d.total("reads_posted_total") == len(LAYERS) * len(asked)
    assert d.total("reads_landed_total") == len(LAYERS) * len(asked)
    assert d.total("unprotected_steps_total") == d.total("exposed_requests_total") == 0
    assert d.handshakes() == 1
    assert d.hooks_installed() == {1}
    assert d.released()


@pytest.mark.parametrize("barrier", ["auto", "upstream", *ADAPTIVE])
@pytest.mark.parametrize("graph", ["NONE", "PIECEWISE", "FULL"])
@both_runners
def test_slow(
    decode: GetDecode, faults: FaultFile, observed: Observed, runner: str, graph: str, barrier: str
) -> None:
    d = decode(barrier=barrier, runner=runner, graphs=CUDAGraphMode.FULL_AND_PIECEWISE)
    faults.set(SLOW)
    asked = ask_all(d)
    d.serve(graph)
    # Once more: `auto` relies on a layer's hook only after it has seen it fire.
    asked += [d.ask([7, *prompt]) for prompt in PROMPTS]
    d.serve(graph)
    causes = {cause for cause, _ in d.counted("unprotected_steps_total")}
    observed("slow", runner, graph, barrier, "runs ahead" if causes else "waits")
    if barrier == "upstream" and (runner, graph) in UNPROTECTED_BY_UPSTREAM:
        assert causes == {"full_graph"}
        assert d.salad
        assert d.salad <= d.exposed("full_graph")
        assert d.counted("full_graph_skips_total").keys() == {("false",)}
    else:
        assert causes == set()
        assert d.exposures == []
        assert all(d.is_right(*asked))
        assert d.blocked() > 0


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_waits_stand_where_upstream_puts_them(
    decode: GetDecode, faults: FaultFile, runner: str
) -> None:
    d = decode(barrier="upstream", runner=runner)
    faults.set(SLOW)
    ask_all(d)
    d.serve()
    assert (d.waits("layer"), d.waits("step")) == ((0, 1) if FAILS_STEP else (len(LAYERS), 0))


@pytest.mark.parametrize("barrier", ["auto", *ADAPTIVE])
def test_waits_stand_in_the_layer_hooks_once_these_were_seen_to_fire(
    decode: GetDecode, faults: FaultFile, barrier: str
) -> None:
    d = decode(barrier=barrier)
    faults.set(SLOW)
    ask_all(d)
    d.serve()
    assert (d.waits("layer"), d.waits("step")) == (0, 1)
    d.ask([7, *PROMPTS[0]])
    d.serve()
    before_forward_only = barrier == "auto" and FAILS_STEP
    expected = (0, 2) if before_forward_only else (len(LAYERS), 1)
    assert (d.waits("layer"), d.waits("step")) == expected


@pytest.mark.parametrize("graph", ["NONE", "PIECEWISE"])
@both_runners
def test_adaptive_lets_a_layer_run_while_reads_of_later_layers_are_in_flight(
    decode: GetDecode,
    faults: FaultFile,
    monkeypatch: pytest.MonkeyPatch,
    runner: str,
    graph: str,
) -> None:
    d = decode(barrier="adaptive", runner=runner, graphs=CUDAGraphMode.FULL_AND_PIECEWISE)
    asked = [d.ask(PROMPTS[0])]
    d.serve(graph)
    first, *_, last = LAYERS
    faults.set(harm({"requests": [0], "layers": [LAYERS.index(last)], "hang": True}))
    asked.append(d.ask(PROMPTS[1]))
    is_right = d.engine.cache.is_right

    def attend_and_let_the_last_layer_land(layer: str, *what: Any) -> bool:
        right = is_right(layer, *what)
        if layer == first:
            d.land_what_hangs()
        return right

    monkeypatch.setattr(d.engine.cache, "is_right", attend_and_let_the_last_layer_land)
    d.serve(graph)
    assert all(d.is_right(*asked))
    assert d.total("barrier_timeouts_total") == d.total("unprotected_steps_total") == 0


def test_adaptive_waits_before_the_forward_for_a_layer_that_has_no_hook(
    decode: GetDecode, faults: FaultFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = decode(barrier="adaptive")
    wait_for_layer_load = d.engine.connector.wait_for_layer_load
    # As the cache of DeepSeek's indexer has none.
    hookless = LAYERS[1]

    def fire(layer: str) -> None:
        if layer != hookless:
            wait_for_layer_load(layer)

    monkeypatch.setattr(d.engine.connector, "wait_for_layer_load", fire)
    faults.set(SLOW)
    asked = ask_all(d)
    d.serve()
    asked += [d.ask([7, *prompt]) for prompt in PROMPTS]
    d.serve()
    assert all(d.is_right(*asked))
    assert d.total("unprotected_steps_total") == 0
    assert (d.waits("layer"), d.waits("step")) == (len(LAYERS) - 1, 2)


def test_a_read_that_hangs_under_adaptive_ends_its_step_as_vllms_own_barrier_would(
    decode: GetDecode, faults: FaultFile
) -> None:
    d = decode(barrier="adaptive", deadline_s=1)
    well = d.ask(PROMPTS[0])
    d.serve()
    faults.set(harm({"requests": [0], "layers": [2], "hang": True}))
    ill = d.ask(PROMPTS[1], max_tokens=1)
    with pytest.raises(TransferError) if FAILS_STEP else contextlib.nullcontext():
        d.serve()
    d.flush()
    assert d.is_right(well) == [True]
    assert d.counted("barrier_timeouts_total") == {("layer",): 1}
    assert d.salad == d.exposed("timeout") == (set() if FAILS_STEP else {ill.request_id})


@both_barriers
def test_one_failed_of_many(
    decode: GetDecode, faults: FaultFile, observed: Observed, barrier: str
) -> None:
    d = decode(barrier=barrier)
    faults.set(harm({"requests": [1], "layers": [0], "fail": True}))
    asked = ask_all(d)
    d.serve()
    failed = asked[1].request_id
    gives_up = barrier == "upstream" and ERA is Era.LAYER_AND_STEP
    assert d.total("reads_failed_total") == 1
    assert d.exposed("failed") == {failed}
    assert bool(d.exposed("gave_up")) is gives_up
    assert d.salad <= d.exposed("failed") | d.exposed("gave_up")
    assert {each["action"] for each in d.exposures if each["cause"] == "failed"} == {
        "recomputed" if RECOVERS else "reported"
    }
    assert d.is_right(asked[1]) == [RECOVERS]
    others = d.is_right(asked[0], *asked[2:])
    told = "recomputed by vLLM, told" if RECOVERS else "wrong answer, told"
    harm_done = "" if all(others) else "; other requests of the step too: wrong answers, told"
    observed("failed", barrier, told + harm_done)
    if not gives_up:
        assert all(others)
        assert {cause for cause, _ in d.counted("unprotected_steps_total")} == {"failed"}
    assert d.released()


@both_barriers
def test_hung(decode: GetDecode, faults: FaultFile, observed: Observed, barrier: str) -> None:
    d = decode(barrier=barrier, deadline_s=2)
    faults.set(harm({"requests": [1], "layers": [2], "hang": True}))
    asked = ask_all(d, max_tokens=30)
    if FAILS_STEP:
        with pytest.raises(TransferError):
            d.serve()
        assert d.salad == set()
        observed("hung", barrier, "the step fails, and the engine with it")
    else:
        d.serve()
        assert d.exposed("timeout") == {asked[1].request_id}
        assert d.salad == d.exposed("timeout")
        observed("hung", barrier, "wrong answer, told")
        assert all(d.is_right(asked[0], *asked[2:]))
        assert {cause for cause, _ in d.counted("unprotected_steps_total")} == {"timeout"}
    # What a failed step has counted comes with a later one.
    d.flush_until(lambda: d.counted("reads_aborted_total"))
    assert d.total("reads_aborted_total") == 1
    assert d.released(), "an abort gives P its blocks back, as a completion does"
    assert d.total("barrier_timeouts_total") >= 1


@both_barriers
def test_send_queue_full(decode: GetDecode, faults: FaultFile, barrier: str) -> None:
    d = decode(barrier=barrier)
    faults.set(harm({"requests": [0, 3], "layers": [1, 2], "sq_full": 2}))
    asked = ask_all(d)
    d.serve()
    assert all(d.is_right(*asked))
    assert d.total("send_queue_full_total") == 8
    assert d.total("reads_failed_total") == d.total("unprotected_steps_total") == 0
    assert d.total("reads_posted_total") == len(LAYERS) * len(asked)


def test_a_client_that_leaves_while_its_reads_are_in_flight(
    decode: GetDecode, faults: FaultFile
) -> None:
    d = decode(barrier="off")
    faults.set({"rules": [{"latency_s": 0.3}]})
    gone = d.ask(PROMPTS[0], max_tokens=30)
    d.step()
    d.engine.abort(gone.request_id)
    d.flush_until(lambda: d.counted("late_landings_total"))
    assert d.counted("late_landings_total") == {("true",): len(LAYERS)}
    assert d.exposed("no_barrier") == {gone.request_id}
    assert d.released()
    d.flush_until(lambda: d.gauge("quarantined_blocks") == 0)
    assert d.blocks_in_use() == 0


@pytest.mark.skipif(FAILS_STEP, reason="0.33 fails the step, and the engine with it")
@both_barriers
def test_a_client_that_leaves_while_a_read_of_its_hangs(
    decode: GetDecode, faults: FaultFile, barrier: str
) -> None:
    d = decode(barrier=barrier, deadline_s=1)
    faults.set(harm({"requests": [1], "layers": [2], "hang": 2}))
    asked = ask_all(d)
    d.step()
    d.engine.abort(asked[1].request_id)
    d.serve()
    d.flush_until(lambda: d.counted("late_landings_total"))
    assert all(d.is_right(asked[0], *asked[2:]))
    assert d.exposed("timeout") == {asked[1].request_id}
    assert d.counted("late_landings_total") == {("true",): 1}
    assert d.total("reads_aborted_total") == 0


def test_a_client_that_leaves_before_its_request_was_scheduled(decode: GetDecode) -> None:
    d = decode()
    other = d.ask(PROMPTS[0], max_tokens=10)
    d.step()
    gone = d.ask(PROMPTS[1])
    d.engine.abort(gone.request_id)
    d.serve()
    assert d.is_right(other) == [True]
    assert d.total("unprotected_steps_total") == 0


@pytest.mark.skipif(not LOADS_AFTER, reason="0.28 starts loads before the forward only")
@both_runners
@both_barriers
def test_loads_after_the_forward(
    decode: GetDecode, monkeypatch: pytest.MonkeyPatch, barrier: str, runner: str
) -> None:
    d = decode(barrier=barrier, runner=runner)
    order: list[str] = []
    _note(monkeypatch, d.engine.connector, "start_load_kv", order)
    _note(monkeypatch, d.engine.connector, "wait_for_layer_load", order)
    [asked] = [d.ask(PROMPTS[0], max_tokens=2)]
    d.step()
    assert order == ["start_load_kv", *["wait_for_layer_load"] * len(LAYERS)]
    order.clear()
    d.serve()
    assert order[: len(LAYERS) + 1] == [*["wait_for_layer_load"] * len(LAYERS), "start_load_kv"]
    assert d.is_right(asked) == [True]
    assert d.total("unprotected_steps_total") == 0
    assert d.counted("steps_total")[("NONE", "false")] >= 1


@pytest.mark.skipif(not LOADS_AFTER, reason="0.28 starts loads before the forward only")
def test_what_lands_during_the_forward_has_not_landed_before_it(
    decode: GetDecode, faults: FaultFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = decode(barrier="off")
    faults.set(SLOW)
    d.ask(PROMPTS[0])
    d.step()
    assert d.total("unprotected_steps_total") == 1
    statuses = list(_statuses(d.engine.connector.connector_worker._recving_transfers))
    is_right = d.engine.cache.is_right

    def attend_until_all_has_landed(*what: Any) -> bool:
        right = is_right(*what)
        for status in statuses:
            status.Wait()
        return right

    monkeypatch.setattr(d.engine.cache, "is_right", attend_until_all_has_landed)
    d.step()
    assert d.total("unprotected_steps_total") == 2


def _statuses(by_request: Any) -> Iterator[Any]:
    for by_layer in by_request.values():
        for value in by_layer.values():
            yield from value if isinstance(value, list) else (value,)


def _note(monkeypatch: pytest.MonkeyPatch, target: Any, name: str, order: list[str]) -> None:
    real = getattr(target, name)

    def noted(*args: Any, **kwargs: Any) -> Any:
        order.append(name)
        return real(*args, **kwargs)

    monkeypatch.setattr(target, name, noted)


@both_barriers
def test_phantom_hit(decode: GetDecode, observed: Observed, barrier: str) -> None:
    d = decode(barrier=barrier)
    asked = d.ask_alone(PROMPTS[0])
    d.serve()
    assert d.is_right(asked) == [FAILS_STEP]
    phantoms = {} if FAILS_STEP else {("no_params", "reported"): 1}
    assert d.counted("phantom_hits_total") == phantoms
    assert [each["request_id"] for each in d.phantoms] == [asked.request_id] * len(phantoms)
    assert d.total("requests_total") == d.total("unprotected_steps_total") == 0
    observed("phantom", barrier, "wrong answer, told" if phantoms else "computed on D")


@both_barriers
def test_phantom_hit_after_preemption(decode: GetDecode, barrier: str) -> None:
    d = decode(barrier=barrier)
    asked = d.ask(PROMPTS[0])
    d.step()
    d.engine.preempt()
    d.serve()
    assert d.is_right(asked) == [FAILS_STEP]
    phantoms = {} if FAILS_STEP else {("preempted", "reported"): 1}
    assert d.counted("phantom_hits_total") == phantoms


@both_barriers
def test_prefix_cache_hit(decode: GetDecode, faults: FaultFile, barrier: str) -> None:
    d = decode(barrier=barrier)
    faults.set(SLOW)
    cached = d.ask(PROMPTS[0])
    d.serve()
    longer = d.ask([*PROMPTS[0][: 2 * BLOCK_SIZE], *range(500, 520)])
    d.serve()
    assert all(d.is_right(cached, longer))
    assert d.total("requests_total") == 2
    # All but the last token is here already: there is nothing to read, but P must be told.
    posted = d.total("reads_posted_total")
    whole = d.ask(PROMPTS[0][: 2 * BLOCK_SIZE + 1])
    d.serve()
    assert all(d.is_right(whole))
    assert d.total("reads_posted_total") == posted
    assert d.total("requests_total") == 2
    assert d.total("unprotected_steps_total") == d.total("phantom_hits_total") == 0
    assert d.released()


def test_a_release_that_cannot_be_sent(
    decode: GetDecode, faults: FaultFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = decode()
    faults.set(harm({"requests": [0], "layers": [0], "fail": True}))
    wrapper = d.engine.connector.connector_worker.moriio_wrapper
    closed = zmq.Context.instance().socket(zmq.DEALER)
    closed.close()
    to = f"tcp://127.0.0.1:{d.prefill.ports.notify}"
    monkeypatch.setitem(wrapper.paths, to, closed)
    d.ask(PROMPTS[0])
    with contextlib.suppress(zmq.ZMQError):
        d.serve()
    d.flush()
    assert d.total("notify_failures_total") == 1
