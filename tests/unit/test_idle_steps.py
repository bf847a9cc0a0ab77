"""A step at rest is cut short, and nobody can tell: not by what is counted, sent, or reported."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moriio_observed import upstream
from moriio_observed.observer import ReadObserver
from tests.unit.fakes import FakeStatus
from tests.unit.scripted import Decode, ScriptedWorker, Session, layer_names

LAYERS = 2
OFF = {"barrier": "off", "allow_unsafe": True}


@dataclass(frozen=True)
class Step:
    """One step of a decode engine.

    Attributes:
        reads: How the reads end of a request that begins to read in it; None if none does.
        loads_first: Whether loads come before the forward.
        runs: Whether a forward runs.
        finishes: Whether the oldest request is finished.
        lands: Whether what has been late so far lands before it.
        mode: The CUDA graph mode.
    """

    reads: str | None
    loads_first: bool
    runs: bool
    finishes: bool
    lands: bool
    mode: str


class Ending(Session):
    """Posts reads that end as told; the late ones when somebody lands them."""

    def __init__(self) -> None:
        super().__init__()
        self.outcome = "landed"
        self.late: list[FakeStatus] = []

    def batch_read(self, *_: Any) -> FakeStatus:
        status = FakeStatus()
        if self.outcome == "landed":
            status.land()
        elif self.outcome == "failed":
            status.fail()
        else:
            self.late.append(status)
        return status


@dataclass
class Seen:
    """All that a worker lets out, but for times."""

    counters: dict[str, float] = field(default_factory=dict)
    observations: dict[str, int] = field(default_factory=dict)
    sent: list[tuple[str, ...]] = field(default_factory=list)
    invalid: list[set[int]] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)


def played(steps: Sequence[Step], observed: dict[str, Any], *, cut_short: bool) -> Seen:
    """What a worker lets out in these steps, with the short cut or without."""
    with pytest.MonkeyPatch.context() as patch:
        if not cut_short:
            patch.setattr(ReadObserver, "at_rest", property(lambda _: False))
        # Both are to see the same, however long this machine takes for each.
        decode = Decode(patch, observed, layers=LAYERS, transfer_timeout=60)
        session = decode.worker.session = Ending()
        seen = Seen(sent=decode.sent)
        running: list[str] = []
        for number, step in enumerate(steps):
            if step.lands:
                for status in session.late:
                    status.land()
                session.late.clear()
            finished = {running.pop(0)} if step.finishes and running else set()
            reading = []
            if step.reads is not None:
                session.outcome = step.reads
                reading = [f"r{number}"]
                running += reading
            result = decode.step(
                *(running if step.runs else ()),
                reading=reading,
                loads_first=step.loads_first,
                finished=finished,
                mode=step.mode,
                layers=layer_names(LAYERS),
            )
            seen.invalid.append(set(result.invalid))
            report = decode.connector.build_connector_worker_meta()
            seen.reports.append(repr(report))
        counted = decode.connector._aggregate.cumulative()
        seen.counters = {
            key: value
            for key, value in counted["counters"].items()
            if "seconds" not in key and value
        }
        seen.observations = {
            key: sum(counts) for key, (counts, _) in counted["histograms"].items() if any(counts)
        }
    return seen


def steps_of(*outcomes: str) -> st.SearchStrategy[list[Step]]:
    reads = st.one_of(st.none(), st.none(), st.sampled_from(outcomes))
    flag = st.booleans()
    modes = st.sampled_from(["NONE", "PIECEWISE"])
    return st.lists(st.builds(Step, reads, flag, flag, flag, flag, modes), max_size=12)


@settings(deadline=None, max_examples=60)
@given(steps_of("landed", "failed", "late"))
def test_where_nothing_is_waited_for(steps: list[Step]) -> None:
    assert played(steps, OFF, cut_short=True) == played(steps, OFF, cut_short=False)


@settings(deadline=None, max_examples=60)
@given(steps_of("landed", "failed"))
def test_where_reads_are_waited_for(steps: list[Step]) -> None:
    assert played(steps, {}, cut_short=True) == played(steps, {}, cut_short=False)


@settings(deadline=None, max_examples=60)
@given(steps_of("landed", "failed", "late"))
def test_with_a_guard(steps: list[Step]) -> None:
    guard = {"guard": "recompute"}
    assert played(steps, guard, cut_short=True) == played(steps, guard, cut_short=False)


@pytest.mark.parametrize("by", ["a later vLLM", "a wrapper"])
def test_a_clean_up_that_may_do_more_runs_in_a_step_at_rest_too(
    monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    swept = []
    known = ScriptedWorker._pop_done_transfers

    @functools.wraps(known)
    def sweeping(self: Any) -> set[str]:
        swept.append(dict(self._recving_transfers))
        return known(self)

    if by == "a later vLLM":
        del sweeping.__wrapped__
    monkeypatch.setattr(ScriptedWorker, "_pop_done_transfers", sweeping)
    decode = Decode(monkeypatch, {}, layers=LAYERS)
    for _ in range(3):
        decode.step("r", loads_first=False, layers=layer_names(LAYERS))
    assert swept == [{}] * 3
    assert decode.counted("steps_total") == {"steps_total|NONE|false": 3}


def test_an_error_of_the_short_cut_hides_no_request_from_a_guard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("a bug")

    decode = Decode(monkeypatch, {"guard": "recompute"}, layers=LAYERS)
    decode.worker.session = Ending()
    decode.step("other", loads_first=False, layers=layer_names(LAYERS))
    assert decode.connector._observer.idle
    monkeypatch.setattr(upstream, "quiet_notes", broken)
    decode.step("other", reading=["r"], loads_first=False, layers=layer_names(LAYERS))
    assert decode.connector._turn.arrived == {"r"}


def test_the_short_cut_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = Decode(monkeypatch, {}, layers=LAYERS)
    quiet = []
    notes_of = upstream.quiet_notes
    monkeypatch.setattr(upstream, "quiet_notes", lambda m: quiet.append(notes_of(m)) or quiet[-1])
    for _ in range(3):
        decode.step("r", loads_first=False, layers=layer_names(LAYERS))
    assert [notes and notes.scheduled for notes in quiet] == [{"r": 1}] * 2
