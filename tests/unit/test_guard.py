"""The guard: who is run, who is given up, and when nothing can write into blocks any more."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from moriio_observed.guard import DOZE_S, LOOKS_IN_TURN, Guard, Turn
from tests.unit.fakes import FakeClock, FakeStatus

DEADLINE_S, WATCH_S = 30.0, 600.0
BLOCKS = (7, 8)


class Rig:
    """A guard, and one request "r" with a read for each of two layers."""

    def __init__(
        self, *, waits: bool = True, lease_left: float = math.inf, watch_s: float = WATCH_S
    ) -> None:
        self.clock = FakeClock()
        self.guard = Guard(
            waits=waits,
            deadline_s=DEADLINE_S,
            watch_s=watch_s,
            clock=self.clock,
            sleep=self.clock.sleep,
        )
        self.reads = [FakeStatus(), FakeStatus()]
        self.guard.announce({"r": BLOCKS}, {"r": lease_left})

    def post(self) -> None:
        self.guard.posted("r", list(enumerate(self.reads)))

    def land(self) -> None:
        for read in self.reads:
            read.land()

    def turn(self, after_s: float = 0.0) -> Turn:
        self.clock.sleep(after_s)
        return self.guard.turn()


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.post()
    return rig


def test_a_request_is_run_once_all_its_reads_have_landed(rig: Rig) -> None:
    rig.reads[0].land()
    assert rig.turn() == Turn()
    rig.reads[1].land()
    assert rig.turn() == Turn(landed=["r"], settled=["r"], arrived={"r"})
    assert len(rig.guard) == 0


def test_a_request_whose_reads_are_not_posted_yet_has_not_landed() -> None:
    rig = Rig()
    assert rig.turn() == Turn()
    rig.post()
    rig.land()
    assert rig.turn().landed == ["r"]


def test_a_failed_read_gives_its_request_up_once_the_others_have_ended(rig: Rig) -> None:
    rig.reads[0].fail()
    assert rig.turn() == Turn()
    rig.reads[1].land()
    turn = rig.turn()
    assert (turn.landed, turn.settled, turn.arrived) == ([], ["r"], {"r"})
    assert turn.invalid == set(BLOCKS)
    [given_up] = turn.given_up
    assert (given_up.cause, given_up.layers, given_up.in_flight) == ("failed", (0,), False)


def test_a_read_in_flight_at_the_deadline_gives_its_request_up(rig: Rig) -> None:
    rig.reads[0].land()
    turn = rig.turn(DEADLINE_S)
    assert (turn.landed, turn.settled, turn.arrived) == ([], [], {"r"})
    assert turn.invalid == set(BLOCKS)
    [given_up] = turn.given_up
    assert (given_up.cause, given_up.layers, given_up.in_flight) == ("timeout", (1,), True)
    assert rig.turn(DEADLINE_S) == Turn(), "it is given up once"


def test_reads_that_are_never_posted_may_still_be(rig: Rig) -> None:
    rig = Rig()
    [given_up] = rig.turn(DEADLINE_S).given_up
    assert given_up.in_flight
    rig.post()
    rig.land()
    assert rig.turn() == Turn(settled=["r"])


def test_reads_that_end_after_their_request_was_given_up_settle_it(rig: Rig) -> None:
    rig.turn(DEADLINE_S)
    rig.reads[0].land()
    rig.reads[1].fail()
    assert rig.turn() == Turn(settled=["r"])


def test_reads_that_never_end_are_watched_for_so_long(rig: Rig) -> None:
    rig.turn(DEADLINE_S)
    rig.turn(WATCH_S - DEADLINE_S)
    assert len(rig.guard) == 1
    assert rig.turn(1.0) == Turn()
    assert len(rig.guard) == 0


def test_what_lands_after_the_lease_is_not_trusted() -> None:
    rig = Rig(lease_left=10.0)
    rig.post()
    rig.land()
    turn = rig.turn(10.5)
    assert turn.landed == []
    assert turn.overdue == ["r"]
    [given_up] = turn.given_up
    assert (given_up.cause, given_up.in_flight) == ("timeout", False)


def test_what_lands_after_p_was_told_that_it_is_over_is_not_trusted(rig: Rig) -> None:
    rig.guard.released("r")
    rig.guard.released("unknown")
    rig.land()
    turn = rig.turn()
    assert turn.landed == []
    assert [each.request_id for each in turn.given_up] == ["r"]


def test_a_request_that_waits_is_watched_however_long_it_takes() -> None:
    rig = Rig(watch_s=0.0)
    rig.post()
    assert rig.turn(1.0) == Turn()
    assert not rig.guard.decided("r")
    rig.land()
    assert rig.turn().landed == ["r"]
    assert rig.guard.decided("r")


def test_the_lease_ends_the_wait_if_it_is_shorter_than_the_deadline() -> None:
    rig = Rig(lease_left=10.0)
    rig.post()
    assert rig.turn(9.5) == Turn()
    assert rig.turn(0.5).arrived == {"r"}


def test_nobody_waits_for_a_request_that_has_finished(rig: Rig) -> None:
    rig.guard.finished({"r", "another"})
    assert rig.turn() == Turn(arrived={"r"})
    rig.land()
    assert rig.turn() == Turn(settled=["r"])


def test_without_waiting_it_only_says_what_has_settled() -> None:
    rig = Rig(waits=False)
    rig.post()
    assert rig.turn(DEADLINE_S) == Turn()
    rig.reads[0].fail()
    rig.reads[1].land()
    assert rig.turn() == Turn(settled=["r"])


def test_without_waiting_it_says_what_has_landed_after_the_lease() -> None:
    rig = Rig(waits=False, lease_left=10.0)
    rig.post()
    rig.land()
    assert rig.turn(10.5) == Turn(settled=["r"], overdue=["r"])


def test_reads_of_a_request_nobody_announced_are_left_alone(rig: Rig) -> None:
    rig.guard.posted("another", [(0, FakeStatus())])
    rig.land()
    assert rig.turn() == Turn(landed=["r"], settled=["r"], arrived={"r"})


def post_many(rig: Rig) -> dict[str, FakeStatus]:
    """Three times as many requests as a turn looks at without news, after their first turn."""
    many = {f"r{number}": FakeStatus() for number in range(3 * LOOKS_IN_TURN)}
    rig.guard.announce(dict.fromkeys(many, BLOCKS), {})
    for request_id, status in many.items():
        rig.guard.posted(request_id, [(0, status)])
    rig.turn()
    return many


def looked_at(rig: Rig, many: dict[str, FakeStatus]) -> list[str]:
    """Whose reads a turn looks at."""
    looks = {request_id: status.looks for request_id, status in many.items()}
    rig.turn()
    return [request_id for request_id, status in many.items() if status.looks > looks[request_id]]


def test_of_many_that_upstream_tracks_a_turn_looks_at_few_and_at_each_that_is_dropped() -> None:
    rig = Rig()
    many = post_many(rig)
    assert len(looked_at(rig, many)) <= LOOKS_IN_TURN
    for status in many.values():
        status.land()
    rig.guard.dropped([*many, "unknown"])
    assert sorted(rig.turn().landed) == sorted(many)


def test_what_upstream_is_late_to_drop_has_its_turn() -> None:
    rig = Rig()
    many = post_many(rig)
    for status in many.values():
        status.land()
    # One more for the rig's own request, whose reads have not been posted.
    landed = [request_id for _ in range(4) for request_id in rig.turn().landed]
    assert sorted(landed) == sorted(many)


def test_a_request_for_which_nothing_was_posted_has_not_landed() -> None:
    rig = Rig()
    rig.guard.posted("r", [])
    assert rig.turn() == Turn()
    turn = rig.turn(DEADLINE_S)
    assert (turn.landed, turn.arrived, turn.invalid) == ([], {"r"}, set(BLOCKS))


def test_what_upstream_drops_in_flight_is_looked_at_until_it_ends(rig: Rig) -> None:
    assert rig.turn() == Turn()
    rig.reads[0].fail()
    rig.guard.dropped(["r"])
    assert rig.turn() == Turn()
    rig.reads[1].land()
    assert rig.turn().given_up


@pytest.mark.parametrize("lease_left", [math.inf, DEADLINE_S / 2])
def test_time_decides_though_upstream_tracks_a_request(lease_left: float) -> None:
    rig = Rig(lease_left=lease_left)
    rig.post()
    assert rig.turn() == Turn()
    assert rig.turn(min(lease_left, DEADLINE_S)).arrived == {"r"}
    rig.land()
    assert rig.turn().settled == ["r"]


def test_an_idle_step_has_time_to_look_at_everybody() -> None:
    rig = Rig()
    many = post_many(rig)
    for status in many.values():
        status.land()
    assert sorted(rig.guard.turn(idle=True).landed) == sorted(many)


def test_of_many_that_nobody_waits_for_each_has_its_turn() -> None:
    rig = Rig(waits=False)
    many = post_many(rig)
    assert len(looked_at(rig, many)) == LOOKS_IN_TURN
    for status in many.values():
        status.land()
    settled = [request_id for _ in range(3) for request_id in rig.turn().settled]
    assert sorted(settled) == sorted(many)


def test_an_idle_step_waits_a_little_for_a_read(rig: Rig) -> None:
    began = rig.clock.now
    rig.guard.turn()
    assert rig.clock.now == began
    rig.guard.turn(idle=True)
    assert rig.clock.now == began + DOZE_S
    rig.land()
    rig.turn()
    ended = rig.clock.now
    rig.guard.turn(idle=True)
    assert rig.clock.now == ended, "there is nothing to wait for any more"


def test_an_idle_step_waits_for_moris_event_where_there_is_one(rig: Rig) -> None:
    waited = []
    for read in rig.reads:
        read.WaitFor = waited.append  # type: ignore[attr-defined]
    rig.guard.turn(idle=True)
    assert waited == [2]


@given(
    ends=st.lists(
        st.tuples(st.sampled_from(["land", "fail", "hang"]), st.floats(0, 60)),
        min_size=1,
        max_size=6,
    ),
    turns=st.lists(st.floats(0.1, 20), min_size=1, max_size=12),
)
def test_a_request_runs_exactly_if_all_reads_landed_in_time(
    ends: list[tuple[str, float]], turns: list[float]
) -> None:
    rig = Rig()
    rig.reads = [FakeStatus() for _ in ends]
    rig.post()
    for read, (end, after_s) in zip(rig.reads, ends, strict=True):
        if end != "hang":
            rig.clock.at(after_s, read.land if end == "land" else read.fail)
    decided = 0
    for after_s in [*turns, DEADLINE_S]:
        turn = rig.turn(after_s)
        states = {read.state for read in rig.reads}
        if turn.landed:
            assert states == {"landed"}
        if turn.given_up:
            assert states != {"landed"}
            assert turn.given_up[0].in_flight is ("in flight" in states)
            assert turn.invalid == set(BLOCKS)
        if turn.settled:
            assert "in flight" not in states
        decided += len(turn.arrived)
    assert decided == 1


class GuardOverUpstream(RuleBasedStateMachine):
    """Any course of events, beside what is true of each request."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.guard = Guard(
            waits=True,
            deadline_s=DEADLINE_S,
            watch_s=math.inf,
            clock=self.clock,
            sleep=self.clock.sleep,
        )
        self.reads: dict[str, list[FakeStatus]] = {}
        self.tracked: set[str] = set()
        self.lease_end: dict[str, float] = {}
        self.deadline: dict[str, float] = {}
        self.released: set[str] = set()
        self.gone: set[str] = set()
        self.waiting: set[str] = set()
        self.unsettled: set[str] = set()

    def names(self) -> st.SearchStrategy[str]:
        return st.sampled_from(sorted(self.reads))

    @rule(layers=st.integers(1, 3), lease_left=st.sampled_from([5.0, 40.0, math.inf]))
    def post(self, layers: int, lease_left: float) -> None:
        name = f"r{len(self.reads)}"
        self.guard.announce({name: BLOCKS}, {name: lease_left})
        self.lease_end[name] = self.clock.now + lease_left
        self.deadline[name] = self.clock.now + DEADLINE_S
        self.reads[name] = [FakeStatus() for _ in range(layers)]
        self.guard.posted(name, list(enumerate(self.reads[name])))
        for all_of in (self.tracked, self.waiting, self.unsettled):
            all_of.add(name)

    @precondition(lambda self: self.reads)
    @rule(data=st.data(), end=st.sampled_from(["land", "fail"]), every=st.booleans())
    def end(self, data: Any, end: str, every: bool) -> None:
        reads = self.reads[data.draw(self.names())]
        for read in reads if every else [data.draw(st.sampled_from(reads))]:
            getattr(read, end)()

    @precondition(lambda self: self.reads)
    @rule(data=st.data())
    def finish(self, data: Any) -> None:
        name = data.draw(self.names())
        self.guard.finished([name])
        self.gone.add(name)

    @precondition(lambda self: self.tracked)
    @rule(data=st.data())
    def abort(self, data: Any) -> None:
        """Upstream gives a request up while its reads are in flight, and P is told."""
        name = data.draw(st.sampled_from(sorted(self.tracked)))
        if "in flight" in {read.state for read in self.reads[name]}:
            self.tracked.discard(name)
            self.guard.dropped([name])
            self.guard.released(name)
            self.released.add(name)

    @rule(after_s=st.sampled_from([0.1, 4.0, 20.0]), cleans_up=st.booleans(), idle=st.booleans())
    def step(self, after_s: float, cleans_up: bool, idle: bool) -> None:
        self.clock.sleep(after_s)
        if cleans_up:
            states = {name: {read.state for read in self.reads[name]} for name in self.tracked}
            over = {n for n, each in states.items() if "failed" in each or each == {"landed"}}
            self.tracked -= over
            self.guard.dropped(over)
        self.hear(self.guard.turn(idle=idle))
        if cleans_up or idle:
            self.nobody_is_late()

    def hear(self, turn: Turn) -> None:
        for name in turn.landed:
            assert {read.state for read in self.reads[name]} == {"landed"}
            assert self.clock.now <= self.lease_end[name]
            assert name not in self.released
        assert turn.arrived <= self.waiting, "each is let go once"
        given_up = {each.request_id for each in turn.given_up}
        assert turn.arrived - given_up - set(turn.landed) <= self.gone
        self.waiting -= turn.arrived
        self.tracked -= given_up
        for name in turn.settled:
            assert "in flight" not in {read.state for read in self.reads[name]}
            self.unsettled.remove(name)

    def nobody_is_late(self) -> None:
        for name in self.waiting:
            assert "in flight" in {read.state for read in self.reads[name]}

    @invariant()
    def nobody_waits_beyond_the_deadline(self) -> None:
        """With as many turns as there are to be had, everybody is told of who has ended."""
        self.hear(self.guard.turn())
        for name in self.waiting:
            assert self.clock.now < min(self.deadline[name], self.lease_end[name])
            assert name not in self.gone | self.released

    def teardown(self) -> None:
        for reads in self.reads.values():
            for read in reads:
                read.land()
        for _ in range(len(self.reads) // LOOKS_IN_TURN + 2):
            self.hear(self.guard.turn())
        assert self.waiting == self.unsettled == set()
        assert len(self.guard) == 0


TestGuardOverUpstream = GuardOverUpstream.TestCase
