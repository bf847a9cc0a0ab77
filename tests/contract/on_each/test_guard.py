"""The guard on one version: no token from KV that has not landed, whatever becomes of the reads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from vllm.config import CUDAGraphMode

from moriio_observed import claims as claims_module
from moriio_observed import lease as lease_module
from moriio_observed.config import SettingsError
from moriio_observed.demo.faults import FaultFile
from tests.contract.on_each.decode import Asked, Decode
from tests.contract.on_each.engine import BLOCK_SIZE, LAYERS
from tests.contract.on_each.expected import FAILS_STEP

GetDecode = Callable[..., Decode]
Observed = Callable[..., None]

PROMPTS = [list(range(start, start + 40)) for start in range(10, 70, 10)]
SLOW = [{"latency_s": 0.15, "jitter_s": 0.05}]

both_guards = pytest.mark.parametrize("guard", ["recompute", "fail"])


def harm(faults: FaultFile, *rules: dict[str, Any]) -> None:
    """Faults for the requests that come next, counted from 0; the others are slow."""
    faults.set({"reset_ordinals": True, "rules": [*rules, *SLOW]})


def ask_all(d: Decode, **how: Any) -> list[Asked]:
    return [d.ask(prompt, **how) for prompt in PROMPTS]


def outcome(d: Decode, asked: Asked) -> str:
    """What became of a request, for the table of versions."""
    if d.is_right(asked) == [True]:
        return "computed on D, right" if d.exposures or d.phantoms or d.stale else "right"
    return "an error" if d.errors() == [asked.request_id] else "wrong"


@pytest.mark.parametrize(
    ("runner", "graph", "guard"),
    [
        ("V1", "NONE", "recompute"),
        ("V1", "FULL", "fail"),
        ("V2", "NONE", "fail"),
        ("V2", "FULL", "recompute"),
    ],
)
def test_requests_are_run_once_their_reads_have_landed(
    guarded: GetDecode, faults: FaultFile, runner: str, graph: str, guard: str
) -> None:
    d = guarded(guard, runner=runner, graphs=CUDAGraphMode.FULL_AND_PIECEWISE)
    harm(faults)
    asked = ask_all(d)
    d.serve(graph)
    assert all(d.is_right(*asked))
    assert d.exposures == []
    assert d.total("requests_total") == len(asked)
    assert d.total("reads_landed_total") == len(LAYERS) * len(asked)
    assert d.blocked() == 0
    assert d.released()
    assert d.settled()


@both_guards
def test_a_request_runs_while_the_reads_of_others_fly(
    guarded: GetDecode, faults: FaultFile, guard: str
) -> None:
    d = guarded(guard)
    harm(faults, {"requests": [1], "hang": True})
    quick, slow = d.ask(PROMPTS[0]), d.ask(PROMPTS[1])
    while d.answers[quick.request_id] != quick.right:
        d.step()
    assert d.answers[slow.request_id] == []


@pytest.mark.parametrize("barrier", ["auto", "upstream", "layer", "step", "adaptive", "off"])
def test_a_guard_needs_no_barrier(guarded: GetDecode, faults: FaultFile, barrier: str) -> None:
    d = guarded("recompute", barrier=barrier)
    harm(faults)
    asked = ask_all(d)
    d.serve()
    assert all(d.is_right(*asked))


@both_guards
def test_one_failed_of_many(
    guarded: GetDecode, faults: FaultFile, observed: Observed, guard: str
) -> None:
    d = guarded(guard)
    harm(faults, {"requests": [1], "layers": [0], "fail": True})
    asked = ask_all(d)
    d.serve()
    assert all(d.is_right(asked[0], *asked[2:]))
    assert d.is_right(asked[1]) == [guard == "recompute"]
    assert d.errors() == ([] if guard == "recompute" else [asked[1].request_id])
    assert d.exposed("failed") == {asked[1].request_id}
    assert [each["action"] for each in d.exposures] == [
        {"recompute": "recomputed", "fail": "failed"}[guard]
    ]
    assert d.phantoms == []
    observed("guard", guard, "failed", outcome(d, asked[1]))
    assert d.released()
    assert d.settled()


@both_guards
def test_hung(guarded: GetDecode, faults: FaultFile, observed: Observed, guard: str) -> None:
    d = guarded(guard, deadline_s=2)
    harm(faults, {"requests": [1], "layers": [2], "hang": True})
    asked = ask_all(d, max_tokens=60)
    d.step_until(lambda: d.answers[asked[1].request_id] or d.errors())
    assert d.released(), "P gets its blocks back though the read has not ended"
    d.land_what_hangs()
    d.serve()
    assert all(d.is_right(asked[0], *asked[2:]))
    assert d.is_right(asked[1]) == [guard == "recompute"]
    assert d.errors() == ([] if guard == "recompute" else [asked[1].request_id])
    assert d.exposed("timeout") == {asked[1].request_id}
    assert d.exposures[0]["layers"] == [2]
    assert d.phantoms == []
    observed("guard", guard, "hung", outcome(d, asked[1]))
    d.flush_until(lambda: d.counted("late_landings_total") == {("true",): 1})
    assert d.settled()


def test_what_lands_late_lands_in_blocks_that_nobody_has(
    guarded: GetDecode, faults: FaultFile
) -> None:
    d = guarded("recompute", deadline_s=2)
    harm(faults, {"requests": [0], "hang": True})
    hung = d.ask(PROMPTS[0], max_tokens=20)
    d.serve()
    assert d.gauge("quarantined_blocks") == 3
    others = ask_all(d, max_tokens=20)
    d.step_until(lambda: d.answers[others[0].request_id])
    d.land_what_hangs()
    d.serve()
    d.flush_until(d.settled)
    assert all(d.is_right(hung, *others))


@both_guards
def test_a_guard_is_refused_where_two_requests_can_have_one_id(
    decode: GetDecode, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    monkeypatch.setenv("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", "1")
    with pytest.raises(SettingsError, match="two requests can have one id"):
        decode(guard=guard)


@both_guards
def test_blocks_are_given_back_after_the_quarantine_limit(
    guarded: GetDecode, faults: FaultFile, guard: str
) -> None:
    d = guarded(guard, deadline_s=1, quarantine_limit_s=1)
    harm(faults, {"requests": [0], "hang": True})
    d.ask(PROMPTS[0])
    d.serve()
    d.flush_until(lambda: d.counted("quarantine_expired_total"))
    assert d.settled()


@both_guards
def test_a_client_that_leaves_while_its_reads_are_in_flight(
    guarded: GetDecode, faults: FaultFile, guard: str
) -> None:
    d = guarded(guard)
    harm(faults, {"requests": [0], "hang": True})
    gone = d.ask(PROMPTS[0], max_tokens=30)
    d.step()
    d.engine.abort(gone.request_id)
    d.flush()
    assert d.gauge("quarantined_blocks") == 3
    others = ask_all(d)
    d.serve()
    assert all(d.is_right(*others))
    d.land_what_hangs()
    d.flush_until(lambda: d.counted("late_landings_total") == {("true",): len(LAYERS)})
    assert d.settled()
    assert d.released()


@both_guards
def test_a_plain_request_is_computed_here(
    guarded: GetDecode, observed: Observed, guard: str
) -> None:
    d = guarded(guard)
    asked = d.ask_alone(PROMPTS[0])
    d.serve()
    assert d.is_right(asked) == [True]
    prevented = {} if FAILS_STEP else {("no_params", "prevented"): 1}
    assert d.counted("phantom_hits_total") == prevented
    assert [each["request_id"] for each in d.phantoms] == [asked.request_id] * len(prevented)
    observed("guard", guard, "plain", outcome(d, asked))


@both_guards
def test_a_preempted_request_is_computed_here(guarded: GetDecode, guard: str) -> None:
    d = guarded(guard)
    asked = d.ask(PROMPTS[0], max_tokens=10)
    while not d.answers[asked.request_id]:
        d.step()
    d.engine.preempt()
    d.serve()
    assert d.is_right(asked) == [True]
    prevented = {} if FAILS_STEP else {("preempted", "prevented"): 1}
    assert d.counted("phantom_hits_total") == prevented


@both_guards
def test_prefix_cache_hits(guarded: GetDecode, faults: FaultFile, guard: str) -> None:
    d = guarded(guard)
    harm(faults)
    cached = d.ask(PROMPTS[0])
    d.serve()
    longer = d.ask([*PROMPTS[0][: 2 * BLOCK_SIZE], *range(500, 520)])
    d.serve()
    whole = d.ask(PROMPTS[0][: 2 * BLOCK_SIZE + 1])
    d.serve()
    assert all(d.is_right(cached, longer, whole))
    assert d.total("requests_total") == 2
    assert d.released()
    assert d.settled()


@both_guards
def test_a_late_read_does_not_touch_a_prefix_that_others_share(
    guarded: GetDecode, faults: FaultFile, guard: str
) -> None:
    d = guarded(guard, deadline_s=1)
    first = d.ask(PROMPTS[0], max_tokens=60)
    while len(d.answers[first.request_id]) < 2:
        d.step()
    harm(faults, {"requests": [0], "hang": True})
    d.ask([*PROMPTS[0][: 2 * BLOCK_SIZE], *range(500, 520)])
    d.step()
    [(_, local)] = [
        (name, blocks) for name, blocks in d.blocks_read().items() if name != first.request_id
    ]
    assert len(local) == 2, "the shared blocks are not read again"
    d.serve()
    d.land_what_hangs()
    d.flush_until(d.settled)
    assert d.is_right(first) == [True]


@both_guards
def test_the_same_transfer_is_not_read_twice(guarded: GetDecode, guard: str) -> None:
    d = guarded(guard)
    request_id, params = d.prefill.leg(PROMPTS[0], d.ports)
    first = d.ask_alone(PROMPTS[0], request_id=request_id, params=params)
    again = d.ask_alone(PROMPTS[0], request_id=f"{request_id}-again", params=dict(params))
    d.serve()
    assert all(d.is_right(first, again))
    assert d.total("stale_reads_total") == 1
    assert [each["cause"] for each in d.stale] == ["reused"]
    assert d.total("requests_total") == 1


@both_guards
def test_a_transfer_that_was_released_unread_is_not_read_by_a_retry(
    guarded: GetDecode, guard: str
) -> None:
    d = guarded(guard)
    request_id, params = d.prefill.leg(PROMPTS[0], d.ports)
    gone = d.ask_alone(PROMPTS[0], request_id=request_id, params=dict(params))
    # It leaves while it is in the queue: vLLM gives the blocks back to P.
    d.engine.abort(gone.request_id)
    d.step()
    assert d.released()
    again = d.ask_alone(PROMPTS[0], request_id=f"{request_id}-again", params=dict(params))
    d.serve()
    assert d.is_right(again) == [True]
    assert [each["cause"] for each in d.stale] == ["reused"]
    assert d.total("requests_total") == 0


def test_a_duplicate_that_leaves_the_queue_takes_no_blocks_from_the_one_that_reads(
    guarded: GetDecode, faults: FaultFile
) -> None:
    d = guarded("recompute")
    harm(faults, {"requests": [0], "hang": True})
    request_id, params = d.prefill.leg(PROMPTS[0], d.ports)
    first = d.ask_alone(PROMPTS[0], request_id=request_id, params=dict(params))
    d.step()
    again = d.ask_alone(PROMPTS[0], request_id=f"{request_id}-again", params=dict(params))
    d.engine.abort(again.request_id)
    d.step()
    assert d.prefill.held() > 0
    d.land_what_hangs()
    d.serve()
    assert d.is_right(first) == [True]


@both_guards
def test_what_upstream_would_give_up_first_is_given_up_first(
    guarded: GetDecode, faults: FaultFile, guard: str
) -> None:
    d = guarded(guard, transfer_timeout=25, recv_abort_timeout=1)
    harm(faults, {"requests": [0], "hang": True})
    asked = d.ask(PROMPTS[0])
    d.serve()
    assert d.is_right(asked) == [guard == "recompute"]
    assert d.exposed("timeout") == {asked.request_id}


def test_a_request_is_waited_for_beyond_the_quarantine_limit(
    guarded: GetDecode, faults: FaultFile
) -> None:
    d = guarded("recompute", deadline_s=2, quarantine_limit_s=0)
    harm(faults, {"requests": [0], "hang": True})
    asked = d.ask(PROMPTS[0])
    d.serve()
    assert d.is_right(asked) == [True]
    assert d.exposed("timeout") == {asked.request_id}


def test_a_claim_gone_wrong_leaves_the_reads_in_flight_in_good_hands(
    guarded: GetDecode, faults: FaultFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = guarded("recompute", deadline_s=2)
    harm(faults, {"requests": [0], "hang": True})
    hung = d.ask(PROMPTS[0], max_tokens=20)
    d.step()
    monkeypatch.setattr(claims_module.Claims, "claim", lambda *_: 1 / 0)
    after = d.ask(PROMPTS[1], max_tokens=20)
    d.serve()
    assert d.gauge("quarantined_blocks") == 3
    others = [d.ask(prompt, max_tokens=20) for prompt in PROMPTS[2:]]
    d.step_until(lambda: d.answers[others[0].request_id])
    d.land_what_hangs()
    d.serve()
    assert all(d.is_right(hung, after, *others))


@both_guards
def test_what_p_may_have_recycled_is_not_read(
    guarded: GetDecode, observed: Observed, guard: str
) -> None:
    d = guarded(guard)
    fresh = [d.ask(prompt) for prompt in PROMPTS[:5]]
    request_id, params = d.prefill.leg(PROMPTS[5], d.ports)
    lease = params["moriio_observed_lease"]
    stale = d.ask_alone(
        PROMPTS[5],
        request_id=request_id,
        params=params | {"moriio_observed_lease": lease | {"good_for_s": 0}},
    )
    d.serve()
    assert all(d.is_right(*fresh, stale))
    assert d.total("stale_reads_total") == 1
    assert [each["request_id"] for each in d.stale] == [stale.request_id]
    assert d.total("requests_total") == 5
    observed("guard", guard, "stale", outcome(d, stale))


@both_guards
def test_a_lease_that_nobody_gave_is_counted(guarded: GetDecode, guard: str) -> None:
    d = guarded(guard)
    request_id, params = d.prefill.leg(PROMPTS[0], d.ports)
    del params["moriio_observed_lease"]
    asked = d.ask_alone(PROMPTS[0], request_id=request_id, params=params)
    d.serve()
    assert d.is_right(asked) == [True]
    assert d.total("lease_unknown_total") == 1


@both_guards
def test_a_lease_outlives_clocks_that_disagree(
    guarded: GetDecode, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    monkeypatch.setattr(lease_module, "SETTLED_AFTER", len(PROMPTS) - 1)
    monkeypatch.setattr(lease_module, "SETTLED_OVER", 1.0)
    d = guarded(guard)
    lease_s = 2.0
    asked = [d.ask(prompt) for prompt in PROMPTS[:-1]]
    d.serve()
    # P's monotonic clock is known after so long, and its wall clock does not matter.
    known = time.monotonic() + lease_s
    d.flush_until(lambda: time.monotonic() > known)
    request_id, params = d.prefill.leg(PROMPTS[-1], d.ports)
    lease = params["moriio_observed_lease"]
    lease |= {"good_for_s": lease_s, "issued_at": lease["issued_at"] - 10 * lease_s}
    asked.append(d.ask_alone(PROMPTS[-1], request_id=request_id, params=params))
    d.serve()
    assert all(d.is_right(*asked))
    assert d.total("stale_reads_total") == 0
    assert d.total("requests_total") == len(asked)
