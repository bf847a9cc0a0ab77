"""The waiting: covers every read it should, ends at its deadline, reports what statuses say."""

from __future__ import annotations

import threading

import pytest

from moriio_observed.barrier import PAUSE_LONGEST_S, Era, Outcome, Placement, Waiter, place
from moriio_observed.reads import ReadLedger
from tests.unit.fakes import FakeClock, FakeStatus


class WaitingStatus(FakeStatus):
    """A status with mori's `WaitFor`."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock = clock
        self.waits: list[int] = []

    def WaitFor(self, timeout_ms: int) -> None:  # noqa: N802
        self.waits.append(timeout_ms)
        self.clock.sleep(timeout_ms / 1000)


def posted(*statuses: FakeStatus) -> ReadLedger:
    ledger = ReadLedger()
    for index, status in enumerate(statuses):
        ledger.post(f"r{index}", "remote", [(0, "model.layers.0", status)], nbytes=1, posted_at=0.0)
    return ledger


def wait(
    ledger: ReadLedger, clock: FakeClock, *, timeout_s: float = 30.0, **how: object
) -> Outcome:
    waiter = Waiter(ledger, timeout_s, clock=clock, sleep=clock.sleep, **how)
    return waiter.wait(list(ledger.open_reads()))


def test_reads_that_have_landed_are_not_waited_for() -> None:
    clock, status = FakeClock(), FakeStatus()
    status.land()
    outcome = wait(posted(status), clock)
    assert outcome == Outcome(waited_s=0.0, landed=1, failed=0, in_flight=0)


def test_the_wait_ends_when_the_last_read_lands() -> None:
    clock, early, late = FakeClock(), FakeStatus(), FakeStatus()
    clock.at(0.1, early.land)
    clock.at(0.3, late.land)
    outcome = wait(posted(early, late), clock)
    assert outcome.landed == 2
    assert not outcome.timed_out


def test_a_failed_read_does_not_end_the_wait_for_the_others() -> None:
    clock, bad, good = FakeClock(), FakeStatus(), FakeStatus()
    bad.fail()
    clock.at(0.2, good.land)
    outcome = wait(posted(bad, good), clock)
    assert (outcome.landed, outcome.failed, outcome.in_flight) == (1, 1, 0)


def test_the_wait_gives_up_at_its_deadline_and_marks_what_it_left() -> None:
    clock, hung = FakeClock(), FakeStatus()
    ledger = posted(hung)
    outcome = wait(ledger, clock, timeout_s=2.0)
    assert outcome.timed_out
    assert outcome.in_flight == 1
    assert next(ledger.open_reads()).missed == "timeout"


def test_wait_all_is_given_only_what_is_in_flight_and_never_more_than_is_left() -> None:
    clock = FakeClock()
    landed, hung = FakeStatus(), FakeStatus()
    landed.land()
    calls: list[tuple[list[object], int]] = []

    def wait_all(statuses: list[object], timeout_ms: int) -> None:
        calls.append((statuses, timeout_ms))
        clock.sleep(timeout_ms / 1000)

    wait(posted(landed, hung), clock, timeout_s=1.5, wait_all=wait_all)
    assert [statuses for statuses, _ in calls] == [[hung], [hung]]
    assert [timeout for _, timeout in calls] == [1000, 500]


def test_what_counts_is_the_status_not_the_return_code_of_wait_all() -> None:
    clock, status = FakeClock(), FakeStatus()

    def wait_all(statuses: list[object], timeout_ms: int) -> str:
        clock.sleep(timeout_ms / 1000)
        return "SUCCESS"

    assert wait(posted(status), clock, timeout_s=1.0, wait_all=wait_all).timed_out


def test_without_wait_all_a_status_that_can_wait_is_waited_on() -> None:
    clock = FakeClock()
    status = WaitingStatus(clock)
    clock.at(0.5, status.land)
    outcome = wait(posted(status), clock)
    assert outcome.landed == 1
    assert status.waits == [1000]


def test_without_any_event_a_wait_sleeps_longer_the_longer_it_has_waited() -> None:
    clock, pauses = FakeClock(), list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock.sleep(seconds)

    waiter = Waiter(ledger := posted(FakeStatus()), 0.01, clock=clock, sleep=sleep)
    waiter.wait(list(ledger.open_reads()))
    *pauses, _to_the_deadline = pauses
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (0.0, PAUSE_LONGEST_S)


def test_without_any_event_a_read_that_lands_at_once_is_seen_without_a_sleep() -> None:
    clock, status = FakeClock(), FakeStatus()
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock.sleep(seconds)

    clock.at(0.000_05, status.land)
    waiter = Waiter(ledger := posted(status), 30.0, clock=clock, sleep=sleep)
    assert waiter.wait(list(ledger.open_reads())).landed == 1
    assert set(pauses) == {0.0}


def test_without_any_event_no_sleep_goes_past_the_deadline() -> None:
    clock = FakeClock()
    began = clock()
    outcome = wait(posted(FakeStatus()), clock, timeout_s=0.001_01)
    assert outcome.timed_out
    assert clock() - began == pytest.approx(0.001_01, abs=2e-6)


def test_a_wait_wakes_when_another_thread_lands_the_read() -> None:
    landed = threading.Event()

    class EventStatus(FakeStatus):
        def WaitFor(self, timeout_ms: int) -> None:  # noqa: N802
            landed.wait(timeout_ms / 1000)

    status = EventStatus()

    def land() -> None:
        status.land()
        landed.set()

    ledger = posted(status)
    threading.Timer(0.05, land).start()
    assert Waiter(ledger, 30.0).wait(list(ledger.open_reads())).landed == 1


@pytest.mark.parametrize(
    ("setting", "era", "placement"),
    [
        ("auto", Era.LAYER, Placement.EVIDENCE),
        ("auto", Era.LAYER_AND_STEP, Placement.EVIDENCE),
        ("auto", Era.STEP, Placement.STEP),
        ("auto", Era.UNKNOWN, Placement.UPSTREAM),
        ("adaptive", Era.LAYER, Placement.EVIDENCE),
        ("adaptive", Era.LAYER_AND_STEP, Placement.EVIDENCE),
        ("adaptive", Era.STEP, Placement.EVIDENCE),
        ("adaptive", Era.UNKNOWN, Placement.UPSTREAM),
        ("upstream", Era.LAYER, Placement.UPSTREAM),
        ("layer", Era.STEP, Placement.LAYER),
        ("step", Era.LAYER, Placement.STEP),
        ("off", Era.STEP, Placement.OFF),
    ],
)
def test_the_setting_and_the_release_decide_where_the_barrier_stands(
    setting: str, era: Era, placement: Placement
) -> None:
    assert place(setting, era) is placement


@pytest.mark.parametrize(
    ("placement", "era", "hidden_full", "protected"),
    [
        (Placement.UPSTREAM, Era.LAYER, False, False),
        (Placement.UPSTREAM, Era.LAYER_AND_STEP, False, True),
        (Placement.UPSTREAM, Era.LAYER_AND_STEP, True, False),
        (Placement.UPSTREAM, Era.STEP, True, True),
        (Placement.LAYER, Era.STEP, False, False),
        (Placement.STEP, Era.LAYER, True, True),
        (Placement.EVIDENCE, Era.LAYER, True, True),
        (Placement.EVIDENCE, Era.STEP, True, True),
        (Placement.OFF, Era.STEP, False, False),
    ],
)
def test_which_barriers_protect_a_full_graph_step(
    placement: Placement, era: Era, hidden_full: bool, protected: bool
) -> None:
    assert placement.protects_full_graphs(era, hidden_full=hidden_full) is protected
