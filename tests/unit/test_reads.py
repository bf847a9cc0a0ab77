"""The ledger: what became of each read, and what a step had consumed."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from moriio_observed.reads import ReadLedger, ReadState, Verdict
from tests.unit.fakes import FakeStatus

LATE_WATCH_S = 600.0
LAYERS = 3


def post(
    ledger: ReadLedger, request_id: str = "r", layers: int = LAYERS, posted_at: float = 0.0
) -> list[FakeStatus]:
    statuses = [FakeStatus() for _ in range(layers)]
    ledger.post(
        request_id,
        "10.0.0.1:7301",
        [(i, f"model.layers.{i}.attn", status) for i, status in enumerate(statuses)],
        nbytes=64 * layers,
        posted_at=posted_at,
    )
    return statuses


def judge(ledger: ReadLedger, *scheduled: str, full_graph: bool = False) -> Verdict:
    return ledger.judge(full_graph=full_graph, scheduled=dict.fromkeys(scheduled, 1))


def land_all(statuses: list[FakeStatus]) -> None:
    for status in statuses:
        status.land()


def test_a_step_whose_reads_were_all_seen_landed_before_the_forward_is_protected() -> None:
    ledger = ReadLedger()
    land_all(post(ledger))
    assert ledger.look_before_forward(None, fresh=True) == LAYERS
    verdict = judge(ledger, "r")
    assert verdict.cause is None
    assert verdict.exposures == []


def test_a_read_that_landed_unseen_during_the_forward_is_possibly_unlanded() -> None:
    ledger = ReadLedger()
    statuses = post(ledger)
    ledger.look_before_forward(None, fresh=True)
    land_all(statuses)
    verdict = judge(ledger, "r")
    assert verdict.unlanded == {("no_barrier", False): LAYERS}
    assert (verdict.cause, verdict.certain) == ("no_barrier", False)


def test_a_read_in_flight_when_the_forward_ended_is_certainly_unlanded() -> None:
    ledger = ReadLedger()
    post(ledger)
    verdict = judge(ledger, "r")
    assert verdict.unlanded == {("no_barrier", True): LAYERS}
    assert verdict.exposures[0].layers == (0, 1, 2)
    assert verdict.exposures[0].certain


def test_a_full_graph_step_names_the_graph_as_the_cause() -> None:
    ledger = ReadLedger()
    post(ledger)
    assert judge(ledger, "r", full_graph=True).cause == "full_graph"


def test_the_first_cause_of_the_fixed_order_names_request_and_step() -> None:
    ledger = ReadLedger()
    statuses = post(ledger)
    reads = list(ledger.open_reads())
    reads[0].missed = "gave_up"
    reads[1].missed = "timeout"
    statuses[2].fail()
    verdict = judge(ledger, "r")
    assert set(verdict.unlanded) == {("failed", True), ("timeout", True), ("gave_up", True)}
    assert verdict.cause == "failed"
    assert verdict.exposures[0].cause == "failed"


def test_a_read_seen_failed_by_a_barrier_exposes_its_request() -> None:
    ledger = ReadLedger()
    statuses = post(ledger)
    statuses[1].fail()
    land_all([statuses[0], statuses[2]])
    ledger.look(ledger.open_reads())
    verdict = judge(ledger, "r")
    assert verdict.unlanded == {("failed", True): 1}
    assert verdict.exposures[0].layers == (1,)


def test_a_request_is_exposed_once_however_many_steps_it_takes_part_in() -> None:
    ledger = ReadLedger()
    post(ledger)
    first = judge(ledger, "r")
    second = judge(ledger, "r")
    assert len(first.exposures) == 1
    assert second.exposures == []
    assert second.unlanded == {}


def test_every_step_with_a_read_still_in_flight_is_unprotected() -> None:
    ledger = ReadLedger()
    statuses = post(ledger)
    judge(ledger, "r")
    assert judge(ledger, "r").cause == "no_barrier"
    land_all(statuses)
    ledger.look_before_forward(None, fresh=False)
    assert judge(ledger, "r").cause is None


def test_a_request_that_takes_no_part_in_a_step_is_not_judged_by_it() -> None:
    ledger = ReadLedger()
    post(ledger, "waiting")
    assert judge(ledger, "other").cause is None
    assert judge(ledger, "waiting").cause == "no_barrier"


def test_an_exposed_request_makes_no_step_unprotected_that_runs_without_it() -> None:
    ledger = ReadLedger()
    post(ledger, "r")
    judge(ledger, "r")
    assert judge(ledger, "other").cause is None


def test_a_finished_request_takes_part_in_no_further_step() -> None:
    ledger = ReadLedger()
    post(ledger)
    ledger.finish({"r"})
    assert ledger.judge(full_graph=False, scheduled=None).cause is None


def test_a_read_that_lands_after_its_request_has_finished_is_late() -> None:
    ledger = ReadLedger()
    statuses = post(ledger)
    statuses[0].land()
    assert ledger.finish({"r"}) == 1
    land_all(statuses)
    settled = ledger.settle("r", recovers=False)
    assert settled is not None
    assert settled.landed == 2
    late = ledger.late_landings(1.0)
    assert (late.late, late.landed) == (2, 0)


def test_a_late_landing_that_a_barrier_sees_first_is_late_all_the_same() -> None:
    ledger = ReadLedger()
    statuses = post(ledger)
    ledger.finish({"r"})
    land_all(statuses)
    assert ledger.look(ledger.open_reads()) == LAYERS
    assert ledger.late_landings(1.0).late == LAYERS


def test_what_lands_late_in_blocks_that_were_held_back_is_told_apart() -> None:
    ledger = ReadLedger()
    seen_by_a_barrier, seen_by_the_watch = post(ledger, "a"), post(ledger, "b")
    ledger.finish({"a"})
    ledger.settle("b", recovers=True)
    ledger.hold({"a", "b"})
    land_all(seen_by_a_barrier)
    land_all(seen_by_the_watch)
    ledger.look(ledger.open_reads())
    late = ledger.late_landings(1.0)
    assert (late.late, late.held) == (0, 2 * LAYERS)


def test_a_request_dropped_without_a_failed_read_was_aborted() -> None:
    ledger = ReadLedger()
    statuses = post(ledger)
    statuses[0].land()
    settled = ledger.settle("r", recovers=False)
    assert settled is not None
    assert (settled.landed, settled.aborted, settled.failed) == (1, 2, ())
    assert ledger.in_flight == 0


def test_an_aborted_read_that_lands_is_late_and_not_counted_as_landed_again() -> None:
    ledger = ReadLedger()
    statuses = post(ledger)
    ledger.settle("r", recovers=False)
    land_all(statuses)
    late = ledger.late_landings(1.0)
    assert (late.late, late.landed) == (LAYERS, 0)
    ledger.finish({"r"})
    assert not ledger


def test_reads_left_in_flight_by_another_reads_failure_stay_in_flight_until_they_end() -> None:
    ledger = ReadLedger()
    statuses = post(ledger)
    statuses[0].fail()
    settled = ledger.settle("r", recovers=False)
    assert settled is not None
    assert (len(settled.failed), settled.aborted, ledger.in_flight) == (1, 0, 2)
    statuses[1].land()
    statuses[2].fail()
    late = ledger.late_landings(1.0)
    assert (late.late, late.landed, len(late.failed), ledger.in_flight) == (1, 1, 1, 0)


def test_a_read_nobody_hears_of_again_is_given_up_after_the_watch() -> None:
    ledger = ReadLedger(LATE_WATCH_S)
    statuses = post(ledger)
    statuses[0].fail()
    ledger.settle("r", recovers=False)
    assert ledger.late_landings(LATE_WATCH_S).expired == 0
    assert ledger.late_landings(LATE_WATCH_S + 1).expired == 2
    assert ledger.in_flight == 0


def test_a_request_that_posts_again_leaves_its_earlier_reads_to_the_watch() -> None:
    ledger = ReadLedger()
    earlier = post(ledger)
    post(ledger)
    assert ledger.in_flight == 2 * LAYERS
    land_all(earlier)
    assert ledger.late_landings(1.0).landed == LAYERS


def test_a_request_without_reads_is_not_entered() -> None:
    ledger = ReadLedger()
    assert post(ledger, layers=0) == []
    assert not ledger


def test_the_index_by_layer_holds_exactly_the_reads_not_seen_terminal() -> None:
    ledger = ReadLedger()
    statuses = post(ledger)
    statuses[1].land()
    ledger.look(ledger.open_reads())
    assert set(ledger.open_by_layer) == {"model.layers.0.attn", "model.layers.2.attn"}


def test_a_barrier_has_to_wait_for_what_is_in_flight_of_requests_that_are_not_gone() -> None:
    ledger = ReadLedger()
    statuses = post(ledger, "a")
    post(ledger, "gone")
    ledger.finish({"gone"})
    statuses[0].land()
    ledger.look(ledger.open_reads())
    assert [(read.request.request_id, read.layer) for read in ledger.due()] == [("a", 1), ("a", 2)]


def test_what_a_barrier_has_given_up_is_not_waited_for_again() -> None:
    ledger = ReadLedger()
    post(ledger, "hung")
    for read in ledger.due()[:2]:
        read.missed = "timeout"
    assert [read.layer for read in ledger.due()] == [2]
    ledger.due()[0].missed = "timeout"
    assert ledger.due() == []
    post(ledger, "hung")
    assert len(ledger.due()) == LAYERS, "what it posts anew is"


def test_the_oldest_read_is_the_oldest_that_is_open() -> None:
    ledger = ReadLedger()
    land_all(post(ledger, "old", posted_at=1.0))
    post(ledger, "young", posted_at=5.0)
    assert ledger.oldest_posted_at() == 1.0
    ledger.look_before_forward(None, fresh=True)
    assert ledger.oldest_posted_at() == 5.0


@pytest.mark.parametrize("how", ["failed", "aborted"])
def test_a_request_that_decodes_on_without_its_blocks_makes_every_step_unprotected(
    how: str,
) -> None:
    ledger = ReadLedger()
    statuses = post(ledger)
    if how == "failed":
        statuses[0].fail()
        land_all(statuses[1:])
    judge(ledger, "r")
    ledger.settle("r", recovers=False)
    for _ in range(3):
        verdict = judge(ledger, "r")
        assert verdict.cause is not None
        assert verdict.certain
        assert verdict.exposures == []
    assert judge(ledger, "other").cause is None
    ledger.finish({"r"})
    assert ledger.judge(full_graph=False, scheduled=None).cause is None


def test_a_request_whose_aborted_reads_have_all_landed_late_is_lost_no_more() -> None:
    ledger = ReadLedger()
    statuses = post(ledger)
    judge(ledger, "r")
    ledger.settle("r", recovers=False)
    land_all(statuses[1:])
    ledger.late_landings(1.0)
    assert judge(ledger, "r").cause is not None
    land_all(statuses)
    ledger.late_landings(1.0)
    assert judge(ledger, "r").cause is None


def test_a_request_whose_missing_blocks_the_scheduler_was_told_of_is_not_held_against_it() -> None:
    ledger = ReadLedger()
    post(ledger)[0].fail()
    judge(ledger, "r")
    ledger.settle("r", recovers=True)
    assert judge(ledger, "r").cause is None


def test_a_request_whose_reads_were_lost_before_its_first_step_is_exposed_by_that_step() -> None:
    ledger = ReadLedger()
    post(ledger)[1].fail()
    ledger.settle("r", recovers=False)
    verdict = judge(ledger, "r")
    assert [exposure.cause for exposure in verdict.exposures] == ["failed"]
    assert verdict.unlanded == {("failed", True): LAYERS}


def test_an_exposed_request_that_is_not_scheduled_hides_no_other() -> None:
    ledger = ReadLedger()
    post(ledger, "waiting")
    landing = post(ledger, "running")
    judge(ledger, "waiting", "running")
    land_all(landing)
    ledger.look_before_forward({"running": 1}, fresh=True)
    assert judge(ledger, "running").cause is None


def test_failures_seen_by_the_look_are_known_before_the_forward() -> None:
    ledger = ReadLedger()
    post(ledger)[2].fail()
    ledger.look_before_forward(None, fresh=True)
    assert ledger.fresh_failures == 1


def test_failures_of_reads_that_were_posted_again_are_still_told() -> None:
    ledger = ReadLedger()
    post(ledger)[0].fail()
    ledger.look(ledger.open_reads())
    post(ledger)
    assert len(ledger.late_landings(1.0).failed) == 1


def test_a_step_looks_at_one_read_of_each_exposed_request_not_at_all() -> None:
    ledger = ReadLedger()
    statuses = [status for i in range(20) for status in post(ledger, f"r{i}", layers=61)]
    judge(ledger, *(f"r{i}" for i in range(20)))
    for status in statuses:
        status.looks = 0
    ledger.look_before_forward(None, fresh=True)
    judge(ledger, *(f"r{i}" for i in range(20)))
    assert sum(status.looks for status in statuses) <= 21


class LedgerMachine(RuleBasedStateMachine):
    """Any order of post, land, fail, look, step, finish, settle keeps the counts consistent."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = ReadLedger()
        self.statuses: dict[str, list[FakeStatus]] = {}
        self.posted = self.landed = self.failed = self.aborted = 0
        self.unlanded = 0
        self.exposed: list[str] = []
        self.names = 0
        self.time = 0.0

    @rule(target=requests, layers=st.integers(1, 4), again=st.booleans())
    def post(self, layers: int, again: bool) -> str:
        if not again or not self.names:
            self.names += 1
        name = f"r{self.names}"
        self.exposed = [other for other in self.exposed if other != name]
        self.statuses[name] = post(self.ledger, name, layers, posted_at=self.time)
        self.posted += layers
        return name

    @rule(name=requests, layer=st.integers(0, 3), how=st.sampled_from(["land", "fail"]))
    def end(self, name: str, layer: int, how: str) -> None:
        statuses = self.statuses[name]
        status = statuses[layer % len(statuses)]
        if status.state == "in flight":
            getattr(status, how)()

    @rule(fresh=st.booleans())
    def look(self, fresh: bool) -> None:
        self.landed += self.ledger.look_before_forward(None, fresh=fresh)

    @rule(
        names=st.lists(requests, max_size=4),
        everyone=st.booleans(),
        full=st.booleans(),
    )
    def step(self, names: list[str], everyone: bool, full: bool) -> None:
        verdict = self.ledger.judge(
            full_graph=full, scheduled=None if everyone else dict.fromkeys(names, 1)
        )
        self.landed += verdict.landed
        self.unlanded += sum(verdict.unlanded.values())
        self.exposed += [exposure.request_id for exposure in verdict.exposures]
        assert bool(verdict.unlanded) == bool(verdict.exposures)
        if verdict.exposures:
            assert verdict.cause is not None

    @rule(name=requests)
    def finish(self, name: str) -> None:
        self.landed += self.ledger.finish({name})

    @rule(name=requests, recovers=st.booleans())
    def settle(self, name: str, recovers: bool) -> None:
        done = all(status.state == "landed" for status in self.statuses[name])
        settled = self.ledger.settle(name, recovers=recovers)
        if settled is not None:
            self.landed += settled.landed
            self.failed += len(settled.failed)
            self.aborted += settled.aborted
            assert settled.complete is done

    @rule(seconds=st.sampled_from([1.0, LATE_WATCH_S]))
    def late(self, seconds: float) -> None:
        self.time += seconds
        late = self.ledger.late_landings(self.time)
        self.landed += late.landed
        self.failed += len(late.failed)
        self.aborted += late.expired

    @invariant()
    def every_read_is_in_exactly_one_account(self) -> None:
        # Failures are told at settlement.
        waiting_failed = len(self.ledger._superseded) + sum(
            len(request.failed) for request in self.ledger._requests.values()
        )
        ended = self.landed + self.failed + waiting_failed + self.aborted
        assert ended + self.ledger.in_flight == self.posted

    @invariant()
    def nobody_is_exposed_twice_and_no_read_counted_twice(self) -> None:
        assert len(self.exposed) == len(set(self.exposed))
        assert self.unlanded <= self.posted

    @invariant()
    def the_layer_index_agrees_with_the_requests(self) -> None:
        by_layer = {id(read) for reads in self.ledger.open_by_layer.values() for read in reads}
        assert by_layer == {id(read) for read in self.ledger.open_reads()}
        assert all(read.state is ReadState.IN_FLIGHT for read in self.ledger.open_reads())
        due = [read for read in self.ledger.open_reads() if not read.request.gone]
        assert self.ledger.due() == due


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("layers", [1, 5])
def test_a_done_request_counts_every_open_read_as_landed(layers: int) -> None:
    ledger = ReadLedger()
    land_all(post(ledger, layers=layers))
    settled = ledger.settle("r", recovers=False)
    assert settled is not None
    assert settled.landed == layers
    assert ledger.late_landings(1.0).late == 0
