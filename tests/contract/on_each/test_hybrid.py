"""Hybrids: beside its attention layers the model has layers with recurrent state.

No hook of the connector stands in a layer with recurrent state, and the scheduler cannot recover a
request of a hybrid whose reads have failed. So vLLM waits for recurrent state before the forward,
and fails the step where a read that it waits for does not land.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.config import CUDAGraphMode

from moriio_observed.config import SettingsError
from moriio_observed.demo.faults import FaultFile
from moriio_observed.demo.server import BARE, OBSERVED
from moriio_observed.upstream import TransferError
from tests.contract.on_each.decode import Asked, Decode
from tests.contract.on_each.engine import LAYERS, take_ports
from tests.contract.on_each.expected import ADAPTIVE, FAILS_STEP, HYBRID, UNPROTECTED_BY_UPSTREAM
from tests.contract.on_each.prefill import Prefill

pytestmark = pytest.mark.skipif(not HYBRID, reason="0.31 and newer read recurrent state")

GetDecode = Callable[..., Decode]

RECURRENT = tuple(layer.replace("self_attn.attn", "mamba") for layer in LAYERS)
"""Each block of the model has both kinds of layer, as Falcon-H1's have."""
ATTENTION_READS = list(range(len(LAYERS)))
STATE_READS = list(range(len(LAYERS), len(LAYERS) + 2 * len(RECURRENT)))
"""The reads of a request, counted from 0: a layer's recurrent state takes two, conv and SSM."""
READS = {"attention": ATTENTION_READS, "recurrent": STATE_READS}

PROMPTS = [list(range(start, start + 40)) for start in range(10, 50, 10)]
HARMED = 1
SLOW_S, SLOWER_S = 0.1, 0.6

both_barriers = pytest.mark.parametrize("barrier", ["auto", "upstream"])
both_runners = pytest.mark.parametrize("runner", ["V1", "V2"])
both_graphs = pytest.mark.parametrize("graph", ["NONE", "FULL"])
both_kinds = pytest.mark.parametrize("kind", READS)
each_connector = pytest.mark.parametrize("connector", ["auto", "upstream", "bare"])


@pytest.fixture(scope="module")
def prefill(model: Path) -> Iterator[Prefill]:
    """A prefill engine of the same model."""
    with contextlib.closing(Prefill(model, take_ports(), RECURRENT)) as prefill:
        yield prefill


def ask_all(d: Decode) -> list[Asked]:
    return [d.ask(prompt) for prompt in PROMPTS]


def slow(kind: str) -> dict[str, Any]:
    """Every read is slow, those of one kind are slower."""
    return {"rules": [{"layers": READS[kind], "latency_s": SLOWER_S}, {"latency_s": SLOW_S}]}


def harm(kind: str, **how: Any) -> dict[str, Any]:
    """Harm one read of one of the requests that come next; the others are slow."""
    harmed = {"requests": [HARMED], "layers": [READS[kind][-1]]}
    return {"reset_ordinals": True, "rules": [{**harmed, **how}, {"latency_s": SLOW_S}]}


def of(connector: str) -> dict[str, Any]:
    """What makes a decode engine of one kind: with a barrier of ours, or bare."""
    if connector == "bare":
        return {"connector": BARE}
    return {"connector": OBSERVED, "barrier": connector}


def clean_up(d: Decode) -> None:
    """Step on after a failed step until no read is left: what it has counted comes only now."""
    d.flush()
    d.flush_until(lambda: not d.engine.connector.connector_worker._recving_transfers)


def awaited(connector: str, runner: str, graph: str, kind: str) -> bool:
    """Whether a barrier stands before what consumes the reads of a kind."""
    return (
        connector in ("auto", "adaptive")
        or kind == "recurrent"
        or (runner, graph) not in UNPROTECTED_BY_UPSTREAM
    )


@both_runners
@both_barriers
def test_healthy_with_two_reads_for_the_recurrent_state_of_a_layer(
    decode: GetDecode, barrier: str, runner: str
) -> None:
    d = decode(barrier=barrier, runner=runner)
    asked = ask_all(d)
    d.serve()
    assert all(d.is_right(*asked))
    reads = (len(LAYERS) + 2 * len(RECURRENT)) * len(asked)
    assert d.total("reads_posted_total") == d.total("reads_landed_total") == reads
    assert d.exposures == []
    assert d.total("unprotected_steps_total") == 0
    assert d.released()


@both_kinds
@pytest.mark.parametrize("barrier", ["auto", "upstream", *ADAPTIVE])
@both_graphs
@both_runners
def test_slow(
    decode: GetDecode, faults: FaultFile, runner: str, graph: str, barrier: str, kind: str
) -> None:
    d = decode(barrier=barrier, runner=runner, graphs=CUDAGraphMode.FULL_AND_PIECEWISE)
    faults.set(slow(kind))
    asked = ask_all(d)
    d.serve(graph)
    if barrier != "upstream":
        # It relies on a layer's hook only after it has seen it fire.
        asked += ask_all(d)
        d.serve(graph)
    if awaited(barrier, runner, graph, kind):
        assert all(d.is_right(*asked))
        assert d.exposures == []
        assert d.total("unprotected_steps_total") == 0
    else:
        assert d.exposed("full_graph") == d.salad == {each.request_id for each in asked}
        assert {cause for cause, _ in d.counted("unprotected_steps_total")} == {"full_graph"}
        assert d.total("unlanded_reads_total") == len(LAYERS) * len(asked)


@both_graphs
@both_runners
def test_waits_stand_where_upstream_puts_them(
    decode: GetDecode, faults: FaultFile, runner: str, graph: str
) -> None:
    d = decode(barrier="upstream", runner=runner, graphs=CUDAGraphMode.FULL_AND_PIECEWISE)
    faults.set(slow("attention"))
    ask_all(d)
    d.serve(graph)
    layers = 0 if FAILS_STEP or graph == "FULL" else len(LAYERS)
    assert (d.waits("layer"), d.waits("step")) == (layers, 1)


@pytest.mark.parametrize("barrier", ["auto", *ADAPTIVE])
def test_recurrent_state_is_waited_for_before_the_forward_always(
    decode: GetDecode, faults: FaultFile, barrier: str
) -> None:
    d = decode(barrier=barrier)
    faults.set(slow("attention"))
    ask_all(d)
    d.serve()
    assert (d.waits("layer"), d.waits("step")) == (0, 1)
    ask_all(d)
    d.serve()
    layers = 0 if barrier == "auto" and FAILS_STEP else len(LAYERS)
    assert (d.waits("layer"), d.waits("step")) == (layers, 2)


@both_kinds
@each_connector
@both_graphs
@both_runners
def test_a_failed_read_fails_the_step_that_waits_for_it(
    decode: GetDecode, faults: FaultFile, runner: str, graph: str, connector: str, kind: str
) -> None:
    d = decode(**of(connector), runner=runner, graphs=CUDAGraphMode.FULL_AND_PIECEWISE)
    faults.set(harm(kind, fail=True))
    asked = ask_all(d)
    fails = awaited(connector, runner, graph, kind)
    with pytest.raises(TransferError) if fails else contextlib.nullcontext():
        d.serve(graph)
    harmed = asked[HARMED].request_id
    if fails:
        assert not any(d.answers.values())
        clean_up(d)
    else:
        assert harmed in d.salad
    if connector != "bare":
        assert d.total("reads_failed_total") == 1
        assert d.total("barrier_timeouts_total") == 0
        # A hybrid's load errors cannot be recovered, so none are reported.
        assert d.total("load_error_blocks_total") == 0
        assert d.exposed("failed") == (set() if fails else {harmed})
        assert d.salad <= {each["request_id"] for each in d.exposures}
        assert {each["action"] for each in d.exposures} == (set() if fails else {"reported"})


@both_kinds
@each_connector
def test_a_hung_read_fails_the_step_that_waits_for_it(
    decode: GetDecode, faults: FaultFile, connector: str, kind: str
) -> None:
    d = decode(**of(connector), deadline_s=1)
    faults.set(harm(kind, hang=True))
    ask_all(d)
    with pytest.raises(TransferError):
        d.serve()
    assert not any(d.answers.values())
    clean_up(d)
    if connector != "bare":
        in_layer = connector == "upstream" and kind == "attention" and not FAILS_STEP
        assert d.counted("barrier_timeouts_total") == {("layer" if in_layer else "step",): 1}
        assert d.total("reads_aborted_total") == 1
        assert d.total("reads_failed_total") == 0
        assert d.exposures == []


# Of itself 0.33 waits in no layer.
@pytest.mark.parametrize("connector", ADAPTIVE or ["auto", "upstream", "bare"])
@both_runners
def test_a_step_that_fails_in_a_layer_exposes_nobody_and_loses_no_count(
    decode: GetDecode, faults: FaultFile, runner: str, connector: str
) -> None:
    d = decode(**of(connector), runner=runner)
    well = ask_all(d)
    d.serve()
    waits = d.waits("layer")
    first, *others = ATTENTION_READS
    harmed = {"requests": [HARMED], "layers": [first], "fail": True, "latency_s": 3 * SLOW_S}
    late = {"layers": others, "latency_s": SLOWER_S}
    faults.set({"reset_ordinals": True, "rules": [harmed, late]})
    ill = ask_all(d)
    with pytest.raises(TransferError):
        d.serve()
    clean_up(d)
    assert all(d.is_right(*well))
    assert not any(d.answers[each.request_id] for each in ill)
    if connector != "bare":
        assert d.exposures == []
        assert d.total("unprotected_steps_total") == 0
        assert d.total("reads_failed_total") == 1
        assert d.total("reads_posted_total") == len(ATTENTION_READS + STATE_READS) * len(well + ill)
        assert d.waits("layer") - waits == 1


@both_graphs
@both_runners
def test_guard_fail_runs_no_step_before_its_reads_have_landed(
    decode: GetDecode, faults: FaultFile, runner: str, graph: str
) -> None:
    d = decode(guard="fail", runner=runner, graphs=CUDAGraphMode.FULL_AND_PIECEWISE)
    faults.set({"rules": [{"latency_s": SLOW_S}]})
    asked = ask_all(d)
    d.serve(graph)
    assert all(d.is_right(*asked))
    assert d.exposures == []
    assert d.total("unprotected_steps_total") == 0
    assert d.released()


@pytest.mark.parametrize(
    ("kind", "fault"),
    [("attention", {"fail": True}), ("recurrent", {"fail": True}), ("attention", {"hang": 1.2})],
)
@both_graphs
@both_runners
def test_guard_fail_fails_the_step_of_a_read_that_does_not_land(
    decode: GetDecode,
    faults: FaultFile,
    runner: str,
    graph: str,
    kind: str,
    fault: dict[str, Any],
) -> None:
    d = decode(guard="fail", runner=runner, graphs=CUDAGraphMode.FULL_AND_PIECEWISE, deadline_s=1)
    faults.set(harm(kind, **fault))
    ask_all(d)
    with pytest.raises(TransferError):
        d.serve(graph)
    assert not any(d.answers.values())
    clean_up(d)
    timeouts = {("step",): 1} if "hang" in fault else {}
    assert d.counted("barrier_timeouts_total") == timeouts
    assert d.exposures == []


def test_guard_fail_computes_a_plain_request_here(decode: GetDecode) -> None:
    d = decode(guard="fail")
    asked = d.ask_alone(PROMPTS[0])
    d.serve()
    assert d.is_right(asked) == [True]
    prevented = {} if FAILS_STEP else {("no_params", "prevented"): 1}
    assert d.counted("phantom_hits_total") == prevented


def test_guard_recompute_is_refused(decode: GetDecode) -> None:
    with pytest.raises(SettingsError, match="cannot recompute single requests of a model with"):
        decode(guard="recompute")
