"""Async scheduling on one version: a step runs before vLLM knows what came of the one before.

It is vLLM's default on GPUs, and never in force on a CPU. So a request that is given up in one step
may be in the next one already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from moriio_observed.demo.faults import FaultFile
from moriio_observed.demo.server import BARE, OBSERVED
from tests.contract.on_each.decode import Asked, Decode
from tests.contract.on_each.expected import FAILS_STEP, RECOVERS

GetDecode = Callable[..., Decode]

PROMPTS = [list(range(start, start + 40)) for start in range(10, 50, 10)]
SLOW = [{"latency_s": 0.1, "jitter_s": 0.05}]

both_guards = pytest.mark.parametrize("guard", ["recompute", "fail"])
both_runners = pytest.mark.parametrize("runner", ["V1", "V2"])


@pytest.fixture
def guarded(decode: GetDecode) -> Iterator[GetDecode]:
    """Make a decode engine with a guard that runs ahead; it serves nothing wrong."""
    built: list[Decode] = []

    def make(guard: str, **how: Any) -> Decode:
        built.append(decode(guard=guard, ahead=True, **how))
        return built[0]

    yield make
    for each in built:
        assert each.salad == set()
        assert each.total("unprotected_steps_total") == 0
        each.flush_until(each.settled)
        assert each.released()


def harm(faults: FaultFile, *rules: dict[str, Any]) -> None:
    """Faults for the requests that come next, counted from 0; the others are slow."""
    faults.set({"reset_ordinals": True, "rules": [*rules, *SLOW]})


def ask(d: Decode, prompts: Sequence[Sequence[int]]) -> list[Asked]:
    return [d.ask(prompt, max_tokens=20) for prompt in prompts]


@both_guards
@both_runners
def test_requests_are_run_once_their_reads_have_landed(
    guarded: GetDecode, faults: FaultFile, guard: str, runner: str
) -> None:
    d = guarded(guard, runner=runner)
    harm(faults)
    asked = ask(d, PROMPTS)
    d.serve()
    assert all(d.is_right(*asked))
    assert d.exposures == []
    assert d.total("requests_total") == len(asked)


@both_guards
@both_runners
def test_one_that_has_failed_and_one_that_hangs(
    guarded: GetDecode, faults: FaultFile, guard: str, runner: str
) -> None:
    d = guarded(guard, runner=runner, deadline_s=2)
    hung = {"requests": [1], "layers": [2], "hang": True}
    harm(faults, {"requests": [0], "layers": [0], "fail": True}, hung)
    harmed, well = ask(d, PROMPTS[:2]), ask(d, PROMPTS[2:])
    d.step_until(lambda: d.answers[harmed[1].request_id] or len(d.errors()) == len(harmed))
    d.land_what_hangs()
    d.serve()
    assert all(d.is_right(*well))
    assert d.is_right(*harmed) == [guard == "recompute"] * 2
    ids = [each.request_id for each in harmed]
    assert d.errors() == ([] if guard == "recompute" else ids)
    assert (d.exposed("failed"), d.exposed("timeout")) == ({ids[0]}, {ids[1]})
    faults.set({"rules": SLOW})
    again = ask(d, PROMPTS)
    d.serve()
    assert all(d.is_right(*again)), "nobody finds what they have left behind"


@both_guards
@pytest.mark.parametrize("steps", [1, 2])
def test_a_client_that_leaves_while_its_reads_are_in_flight(
    guarded: GetDecode, faults: FaultFile, guard: str, steps: int
) -> None:
    d = guarded(guard)
    harm(faults, {"requests": [0], "hang": True})
    [gone] = ask(d, PROMPTS[:1])
    for _ in range(steps):
        d.step()
    d.engine.abort(gone.request_id)
    d.flush()
    assert d.gauge("quarantined_blocks") == 3
    others = ask(d, PROMPTS)
    d.step_until(lambda: d.answers[others[0].request_id])
    d.land_what_hangs()
    d.serve()
    assert all(d.is_right(*others))


@both_guards
def test_a_client_that_leaves_when_its_request_is_given_up(
    guarded: GetDecode, faults: FaultFile, guard: str
) -> None:
    d = guarded(guard)
    harm(faults, {"requests": [0], "layers": [0], "fail": True})
    [gone] = ask(d, PROMPTS[:1])
    while not d.exposures:
        d.step()
    d.engine.abort(gone.request_id)
    others = ask(d, PROMPTS)
    d.serve()
    assert all(d.is_right(*others))
    assert d.errors() == []


@both_guards
def test_a_client_that_leaves_when_its_reads_have_landed(
    guarded: GetDecode, faults: FaultFile, guard: str
) -> None:
    d = guarded(guard)
    harm(faults)
    [gone] = ask(d, PROMPTS[:1])
    d.step()
    while d.blocks_read():
        d.step()
    d.engine.abort(gone.request_id)
    others = ask(d, PROMPTS)
    d.serve()
    assert all(d.is_right(*others))


@both_guards
def test_a_plain_request_is_computed_here(guarded: GetDecode, guard: str) -> None:
    d = guarded(guard)
    asked = d.ask_alone(PROMPTS[0], max_tokens=20)
    d.serve()
    assert d.is_right(asked) == [True]
    prevented = {} if FAILS_STEP else {("no_params", "prevented"): 1}
    assert d.counted("phantom_hits_total") == prevented


@pytest.mark.parametrize("connector", [BARE, OBSERVED], ids=["bare", "report"])
def test_without_a_guard_vllm_serves_what_follows_on_a_failed_read(
    decode: GetDecode, faults: FaultFile, connector: tuple[str, str | None]
) -> None:
    """Where it recomputes the request it throws one token away: the next step's is on its way."""
    d = decode(connector=connector, ahead=True)
    harm(faults, {"requests": [0], "layers": [0], "fail": True})
    [asked] = ask(d, PROMPTS[:1])
    steps = d.serve()
    assert any(step.invalid for step in steps) == RECOVERS
    assert d.errors() == []
    if connector is OBSERVED:
        assert d.exposed("failed") == {asked.request_id}
        assert {each["action"] for each in d.exposures} == {"reported"}
    assert d.salad == {asked.request_id}
    assert d.is_right(asked) == [False]
    assert d.exposed("failed") == ({asked.request_id} if connector is OBSERVED else set())
