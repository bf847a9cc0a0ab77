"""What a decode engine's scheduler side claims, refuses, tells and keeps from reuse."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from moriio_observed import upstream
from moriio_observed.claims import Claims
from moriio_observed.lease import LEASE_KEY, Issuer
from moriio_observed.telemetry.aggregate import Aggregate
from tests.unit.fakes import FakeClock
from tests.unit.test_quarantine import Pool

BLOCK_SIZE, PROMPT, RANKS, LIMIT_S = 16, 40, 2, 600.0
REMOTE = [[70, 71, 72]]
LOCAL = [[0, 1, 2]]
ALLOCATED = SimpleNamespace(get_block_ids=lambda: LOCAL)


def request_of(name: str = "r", tokens: int = PROMPT, **params: Any) -> Any:
    """A request that P has prefilled, a prompt of 40 tokens in 3 blocks."""
    given = {
        "do_remote_prefill": True,
        "remote_block_ids": REMOTE,
        "remote_engine_id": "p",
        "transfer_id": f"tx-{name}",
    }
    return SimpleNamespace(
        request_id=name,
        num_prompt_tokens=PROMPT,
        num_tokens=tokens,
        num_preemptions=0,
        num_computed_tokens=PROMPT,
        kv_transfer_params=given | params,
        is_finished=lambda: False,
    )


class Rig:
    def __init__(self, *, guarded: bool = True, waits: bool = True) -> None:
        self.clock = FakeClock()
        self.pool = Pool()
        self.upstream = SimpleNamespace(_reqs_need_recv={}, _req_kv_params={})
        self.aggregate = Aggregate(source="scheduler")
        self.claims = Claims(
            self.upstream,
            self.aggregate,
            guarded=guarded,
            waits=waits,
            ranks=RANKS,
            block_size=BLOCK_SIZE,
            limit_s=LIMIT_S,
            clock=self.clock,
        )
        self.claims.bind(self.pool)

    def schedule(self, request: Any, computed: int = 0) -> tuple[int, bool]:
        """What upstream and its scheduler do with a request, up to its allocation."""
        upstreams = max(0, PROMPT - computed - 1)
        claimed = self.claims.claim(request, computed, upstreams)
        self.claims.before_allocation(request)
        if request.kv_transfer_params.get("do_remote_prefill") and claimed[0]:
            params = dict(request.kv_transfer_params)
            self.upstream._req_kv_params[request.request_id] = params
            self.upstream._reqs_need_recv[request.request_id] = (request, LOCAL)
        self.claims.allocated(request, ALLOCATED, claimed[0])
        return claimed

    def settle(self, name: str, ranks: int = RANKS, arrived: tuple[str, ...] = ()) -> None:
        self.claims.hear(upstream.WorkerReport(Counter({name: ranks})), arrived)

    def counted(self) -> dict[str, float]:
        counters = self.aggregate.cumulative()["counters"]
        return {key: value for key, value in counters.items() if value}

    def held(self) -> float:
        gauges = self.aggregate.cumulative()["gauges"]
        return float(gauges["quarantined_blocks"]["scheduler"][1])


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    lines = [record.getMessage().partition(" ") for record in caplog.records]
    return [(event, json.loads(body)) for event, _, body in lines if event.startswith("moriio_")]


def test_the_scheduler_waits_for_the_whole_prompt() -> None:
    assert Rig().schedule(request_of()) == (PROMPT, True)


def test_what_is_here_already_is_not_claimed() -> None:
    rig = Rig()
    assert rig.schedule(request_of(), computed=2 * BLOCK_SIZE) == (8, True)


def test_what_is_here_already_is_not_read_again() -> None:
    rig = Rig()
    rig.schedule(request_of(), computed=2 * BLOCK_SIZE)
    assert rig.upstream._reqs_need_recv["r"][1] == [[2]]
    assert rig.upstream._req_kv_params["r"]["remote_block_ids"] == [[72]]


def test_block_ids_may_come_without_groups() -> None:
    rig = Rig()
    request = request_of(remote_block_ids=[70, 71, 72])
    claimed = rig.claims.claim(request, 2 * BLOCK_SIZE, 7)
    rig.upstream._req_kv_params["r"] = dict(request.kv_transfer_params)
    rig.upstream._reqs_need_recv["r"] = (request, [0, 1, 2])
    rig.claims.allocated(request, ALLOCATED, claimed[0])
    assert rig.upstream._reqs_need_recv["r"][1] == [2]
    assert rig.upstream._req_kv_params["r"]["remote_block_ids"] == [72]


def test_no_more_is_claimed_than_p_has() -> None:
    assert Rig().schedule(request_of(remote_block_ids=[[70, 71]])) == (2 * BLOCK_SIZE, True)


def test_what_p_does_not_have_is_computed_here() -> None:
    rig = Rig()
    request = request_of(remote_block_ids=[[70]])
    assert rig.schedule(request, computed=BLOCK_SIZE) == (0, False)


def test_where_nobody_can_wait_upstreams_claim_stands() -> None:
    assert Rig(waits=False).schedule(request_of()) == (PROMPT - 1, False)


def test_without_a_guard_upstreams_claim_stands() -> None:
    rig = Rig(guarded=False, waits=False)
    assert rig.schedule(request_of(do_remote_prefill=False)) == (PROMPT - 1, False)
    assert rig.counted() == {"phantom_hits_total|no_params|reported": 1}


@pytest.mark.parametrize(
    "missing", [{"do_remote_prefill": False}, {"remote_block_ids": None}, {"remote_block_ids": []}]
)
def test_tokens_that_no_read_will_fill_are_computed_here(
    missing: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    assert rig.schedule(request_of(**missing)) == (0, False)
    assert rig.counted() == {"phantom_hits_total|no_params|prevented": 1}
    [(event, said)] = told(caplog)
    assert (event, said["request_id"], said["action"]) == ("moriio_phantom_hit", "r", "prevented")


def test_a_request_that_waits_for_blocks_is_counted_once() -> None:
    rig = Rig()
    request = request_of(do_remote_prefill=False)
    for _ in range(3):
        rig.claims.claim(request, 0, PROMPT - 1)
    rig.schedule(request)
    assert rig.counted() == {"phantom_hits_total|no_params|prevented": 1}


def test_a_preempted_request_is_computed_here() -> None:
    rig = Rig()
    request = request_of(do_remote_prefill=False)
    request.num_preemptions = 1
    assert rig.schedule(request) == (0, False)
    assert rig.counted() == {"phantom_hits_total|preempted|prevented": 1}


def lease(good_for_s: float) -> dict[str, Any]:
    return {LEASE_KEY: Issuer().issue(good_for_s)}


def test_a_read_past_the_lease_is_not_posted(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    request = request_of(**lease(0.0))
    rig.claims.arrived(request)
    assert rig.schedule(request) == (0, False)
    assert not request.kv_transfer_params["do_remote_prefill"], "P is not told to release anything"
    assert rig.counted() == {"stale_reads_total": 1}
    assert told(caplog) == [
        ("moriio_stale_read", {"request_id": "r", "cause": "lease", "action": "prevented"})
    ]


def test_without_a_guard_a_read_past_the_lease_is_told(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(guarded=False, waits=False)
    assert rig.schedule(request_of(**lease(0.0))) == (PROMPT - 1, False)
    assert rig.counted() == {"stale_reads_total": 1}
    [(_, said)] = told(caplog)
    assert said["action"] == "reported"


def test_the_worker_learns_how_long_the_lease_lasts() -> None:
    rig = Rig()
    rig.schedule(request_of(**lease(60.0)))
    lease_left, _ = rig.claims.take_notes()
    assert 0 < lease_left["r"] <= 60
    assert rig.claims.take_notes() == ({}, [])


def test_a_lease_that_nobody_gave_is_counted() -> None:
    rig = Rig()
    assert rig.schedule(request_of()) == (PROMPT, True)
    assert rig.counted() == {"lease_unknown_total": 1}
    assert rig.claims.take_notes() == ({}, [])


def test_a_transfer_is_read_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    params = {"transfer_id": "t"} | lease(60.0)
    rig.schedule(request_of("first", **params))
    assert rig.schedule(request_of("second", **params)) == (0, False)
    assert rig.counted() == {"stale_reads_total": 1}
    [(_, said)] = told(caplog)
    assert (said["request_id"], said["cause"]) == ("second", "reused")


def test_blocks_of_a_request_that_ends_are_held_until_every_rank_has_settled() -> None:
    rig = Rig()
    request = request_of()
    rig.schedule(request)
    rig.claims.finished(request, LOCAL)
    rig.settle("r", ranks=1)
    assert rig.held() == 3
    assert rig.pool.referenced() == [2, 2, 2]
    assert rig.claims.take_notes()[1] == ["r"]
    rig.settle("r", ranks=1)
    assert rig.held() == 0
    assert rig.pool.referenced() == [1, 1, 1]


def test_how_many_blocks_are_held_is_news_whenever_it_changes() -> None:
    rig = Rig()
    request = request_of()
    rig.schedule(request)
    rig.claims.news = False
    rig.claims.finished(request, LOCAL)
    assert rig.claims.news
    rig.settle("r", ranks=1)
    rig.claims.news = False
    rig.settle("r", ranks=1)
    assert rig.claims.news


def test_blocks_whose_reads_have_ended_are_not_held() -> None:
    rig = Rig()
    request = request_of()
    rig.schedule(request)
    rig.settle("r", arrived=("r",))
    rig.claims.finished(request, LOCAL)
    assert rig.held() == 0
    assert request.num_computed_tokens == PROMPT


def test_a_request_given_up_with_reads_in_flight_starts_anew_elsewhere() -> None:
    rig = Rig()
    request = request_of()
    rig.schedule(request)
    rig.settle("r", ranks=1, arrived=("r",))
    assert request.num_computed_tokens == 0
    assert rig.held() == 3


def test_blocks_are_given_back_after_the_limit() -> None:
    rig = Rig()
    request = request_of()
    rig.schedule(request)
    rig.claims.finished(request, LOCAL)
    rig.clock.sleep(LIMIT_S)
    rig.claims.expire()
    assert rig.held() == 0
    assert rig.counted()["quarantine_expired_total"] == 1
    rig.settle("r")
    assert rig.pool.referenced() == [1, 1, 1], "they are given back once"


@pytest.mark.parametrize(("tokens", "aside"), [(4 * BLOCK_SIZE - 1, False), (4 * BLOCK_SIZE, True)])
def test_a_request_that_cannot_fit_beside_what_is_held_lets_others_pass(
    tokens: int, aside: bool
) -> None:
    rig = Rig()
    gone, large = request_of("gone"), request_of("large", tokens)
    assert not rig.claims.steps_aside(large), "nothing is held"
    rig.schedule(gone)
    rig.claims.finished(gone, LOCAL)
    assert rig.claims.steps_aside(large) is aside
    assert rig.schedule(request_of("another")) == (PROMPT, True)
    rig.settle("gone")
    assert not rig.claims.steps_aside(large)


def test_while_a_moved_request_cannot_fit_nothing_more_is_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig()
    moved = request_of("moved", 4 * BLOCK_SIZE)
    rig.schedule(moved)
    rig.settle("moved", ranks=1, arrived=("moved",))
    assert rig.claims.steps_aside(moved)
    assert rig.claims.steps_aside(moved)
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith("moved waits: it needs 5 blocks, and those in quarantine leave 4; until")
    assert rig.schedule(request_of("another")) == (0, False)
    assert rig.counted() == {"lease_unknown_total": 1}, "that is nobody's fault"
    rig.settle("moved", ranks=1)
    assert rig.schedule(request_of("later")) == (PROMPT, True)


def test_a_request_that_was_preempted_stops_no_reads() -> None:
    rig = Rig()
    moved = request_of("moved", 4 * BLOCK_SIZE)
    rig.schedule(moved)
    rig.settle("moved", ranks=1, arrived=("moved",))
    rig.claims.preempted(["moved"])
    assert rig.claims.steps_aside(moved)
    assert rig.schedule(request_of("another")) == (PROMPT, True)


def test_while_kv_that_has_arrived_is_not_run_the_queue_stands_before_who_finds_no_blocks() -> None:
    rig = Rig()
    rig.schedule(request_of("arrived"))
    rig.settle("arrived", arrived=("arrived",))
    rig.pool.free = 4
    large, small = request_of("large", 4 * BLOCK_SIZE), request_of("small")
    assert not rig.claims.steps_aside(small)
    assert rig.claims.steps_aside(large)
    assert rig.claims.steps_aside(small), "nobody overtakes"
    rig.claims.scheduled([])
    assert not rig.claims.steps_aside(small)
    assert rig.claims.steps_aside(large)
    rig.claims.scheduled(["arrived"])
    assert not rig.claims.steps_aside(large), "vLLM itself goes no further than to this one"


def test_a_request_that_ended_before_its_kv_arrived_is_waited_for_by_nobody() -> None:
    rig = Rig()
    gone = request_of("gone")
    rig.schedule(gone)
    rig.claims.finished(gone, LOCAL)
    rig.settle("gone", arrived=("gone",))
    rig.pool.free = 0
    assert not rig.claims.steps_aside(request_of("next"))


def test_where_nobody_waits_nobody_steps_aside() -> None:
    rig = Rig(guarded=False, waits=False)
    gone = request_of("gone")
    rig.schedule(gone)
    rig.claims.finished(gone, LOCAL)
    assert not rig.claims.steps_aside(request_of("large", 4 * BLOCK_SIZE))


@pytest.mark.parametrize(("waits", "held"), [(False, 0), (True, 3)])
def test_what_is_held_when_ours_has_failed_stays_so_only_with_a_guard(
    waits: bool, held: int
) -> None:
    rig = Rig(guarded=waits, waits=waits)
    request = request_of()
    rig.schedule(request)
    rig.claims.finished(request, LOCAL)
    rig.claims.hear(None, ())
    rig.claims.give_up()
    assert rig.held() == held


def test_a_guard_has_nothing_more_read_once_workers_are_not_told_of_leases() -> None:
    rig = Rig()
    assert rig.schedule(request_of("before")) == (PROMPT, True)
    rig.claims.lose_notes()
    assert rig.schedule(request_of("after")) == (0, False)


def test_without_a_guard_what_is_read_is_held_though_workers_are_not_told_of_leases() -> None:
    rig = Rig(guarded=False, waits=False)
    request = request_of()
    rig.schedule(request)
    rig.claims.lose_notes()
    rig.claims.finished(request, LOCAL)
    rig.claims.hear(None, ())
    assert rig.held() == 3


def test_a_transfer_released_unread_is_nobodys_to_read_any_more() -> None:
    rig = Rig()
    rig.claims.before_release(request_of("gone", transfer_id="tx"))
    assert rig.schedule(request_of("again", transfer_id="tx")) == (0, False)


@pytest.mark.parametrize("odd", [{"0": [1]}, "abc", 7])
def test_block_ids_that_are_no_list_are_not_claimed_for(odd: object) -> None:
    assert Rig().schedule(request_of(remote_block_ids=odd)) == (0, False)


def test_blocks_that_preemption_has_freed_are_not_held() -> None:
    rig = Rig(guarded=False, waits=False)
    request = request_of()
    rig.schedule(request)
    rig.claims.preempted({"r"})
    rig.claims.finished(request, LOCAL)
    rig.claims.hear(None, ())
    assert rig.held() == 0


def test_without_a_guard_nothing_is_held_for_a_worker_that_no_longer_watches() -> None:
    rig = Rig(guarded=False, waits=False)
    request = request_of()
    rig.schedule(request)
    rig.claims.finished(request, LOCAL)
    rig.claims.hear(upstream.WorkerReport(broken=True), ())
    assert rig.held() == 0


def test_a_worker_whose_telemetry_has_failed_is_asked_nothing_and_its_guard_is_believed() -> None:
    rig = Rig()
    request = request_of("before")
    rig.schedule(request)
    rig.claims.hear(upstream.WorkerReport(broken=True), ("before",))
    assert request.num_computed_tokens == 0
    assert rig.held() == 3
    assert rig.schedule(request_of("after")) == (0, False)
    assert not any(key.startswith("phantom") for key in rig.counted())


def test_a_request_that_was_moved_and_then_preempted_gives_its_first_blocks_back() -> None:
    rig = Rig()
    request = request_of()
    rig.schedule(request)
    rig.settle("r", ranks=1, arrived=("r",))
    rig.claims.preempted({"r"})
    rig.settle("r", ranks=1)
    assert rig.held() == 0
    assert rig.pool.referenced() == [1, 1, 1]


def test_a_request_is_moved_once() -> None:
    rig = Rig()
    request = request_of()
    rig.schedule(request)
    rig.settle("r", ranks=1, arrived=("r",))
    request.num_computed_tokens = PROMPT
    rig.claims.hear(None, ("r",))
    assert request.num_computed_tokens == PROMPT


def test_a_request_that_asks_again_after_it_was_given_up_is_no_phantom_hit() -> None:
    rig = Rig()
    request = request_of(**lease(60.0))
    rig.schedule(request)
    request.kv_transfer_params["do_remote_prefill"] = False
    assert rig.schedule(request) == (0, False)
    assert rig.counted() == {}


def test_what_p_has_allocated_for_speculative_tokens_is_not_read() -> None:
    rig = Rig()
    request = request_of(remote_block_ids=[[70, 71, 72, 73]])
    assert rig.schedule(request) == (PROMPT, True)
    assert rig.upstream._req_kv_params["r"]["remote_block_ids"] == [[70, 71, 72]]


def test_a_transfer_id_may_name_another_prefill_later() -> None:
    rig = Rig()
    rig.schedule(request_of("first", transfer_id="t", **lease(60.0)))
    assert rig.schedule(request_of("second", transfer_id="t", **lease(60.0))) == (PROMPT, True)


def test_one_ranks_certainty_is_not_lost_by_anothers_doubt() -> None:
    one = upstream.WorkerReport(exposed={"r": ("failed", True)})
    one.aggregate(upstream.WorkerReport(exposed={"r": ("no_barrier", False)}))
    assert one.exposed == {"r": ("failed", True)}


def test_reports_of_several_ranks_add_up() -> None:
    one = upstream.WorkerReport(Counter({"a": 1, "b": 1}))
    all_ranks = one.aggregate(upstream.WorkerReport(Counter({"a": 1}), broken=True))
    assert all_ranks
    assert all_ranks == upstream.WorkerReport(Counter({"a": 2, "b": 1}), broken=True)


def evicted(rig: Rig) -> list[int]:
    return [index for index, block in enumerate(rig.pool.blocks) if not block.found_by_prefix]


def exposed(name: str) -> upstream.WorkerReport:
    return upstream.WorkerReport(Counter({name: RANKS}), {name: ("failed", True)})


def test_without_a_guard_those_that_share_a_prefix_are_exposed_with_its_reader(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(guarded=False, waits=False)
    rig.schedule(request_of("reader", **lease(60.0)))
    rig.claims.allocated(request_of("sharer"), SimpleNamespace(get_block_ids=lambda: [[0, 5]]), 0)
    rig.claims.allocated(request_of("other"), SimpleNamespace(get_block_ids=lambda: [[6, 7]]), 0)
    rig.claims.hear(exposed("reader"), ())
    assert rig.counted() == {"exposed_requests_total|failed|certain|reported": 1}
    [(event, said)] = told(caplog)
    assert (event, said["request_id"], said["shares_with"]) == (
        "moriio_exposure",
        "sharer",
        "reader",
    )


def test_nobody_is_exposed_by_sharing_what_has_landed(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(guarded=False, waits=False)
    rig.schedule(request_of("reader", **lease(60.0)))
    rig.settle("reader")
    rig.claims.allocated(request_of("sharer"), SimpleNamespace(get_block_ids=lambda: [[0, 5]]), 0)
    rig.claims.hear(exposed("reader"), ())
    assert told(caplog) == []


def test_what_an_exposed_request_has_read_and_computed_is_nobodys_prefix() -> None:
    rig = Rig(guarded=False, waits=False)
    request = request_of()
    rig.schedule(request)
    rig.claims.hear(exposed("r"), ())
    assert evicted(rig) == [0, 1, 2]
    rig.claims.finished(request, [[0, 1, 2, 6]])
    assert evicted(rig) == [0, 1, 2, 6]


@pytest.mark.parametrize(
    "wrong", [{"do_remote_prefill": False}, lease(0.0)], ids=["phantom hit", "stale read"]
)
def test_what_a_request_decodes_on_that_was_not_read_in_time_is_nobodys_prefix(
    wrong: dict[str, Any],
) -> None:
    rig = Rig(guarded=False, waits=False)
    request = request_of(**wrong)
    rig.schedule(request)
    assert evicted(rig) == [0, 1, 2]
    rig.claims.finished(request, [[0, 1, 2, 6]])
    assert evicted(rig) == [0, 1, 2, 6]


@pytest.mark.parametrize(("waits", "action"), [(True, "prevented"), (False, "reported")])
def test_a_lease_that_ends_in_mid_read_is_told(
    caplog: pytest.LogCaptureFixture, waits: bool, action: str
) -> None:
    rig = Rig(guarded=waits, waits=waits)
    rig.schedule(request_of(**lease(60.0)))
    for _ in range(RANKS):
        rig.claims.hear(upstream.WorkerReport(Counter({"r": 1}), overdue={"r"}), ())
    assert told(caplog) == [
        ("moriio_stale_read", {"request_id": "r", "cause": "lease", "action": action})
    ]


def test_nothing_is_remembered_of_requests_that_are_over() -> None:
    rig = Rig(guarded=False, waits=False)
    for name in ("a", "b"):
        request = request_of(name)
        rig.schedule(request)
        rig.claims.hear(exposed(name), ())
        rig.claims.finished(request, LOCAL)
    request = request_of("told after its end")
    rig.schedule(request)
    rig.claims.finished(request, LOCAL)
    rig.claims.hear(exposed("told after its end"), ())
    rig.schedule(request_of("reader"))
    rig.claims.allocated(request_of("sharer"), ALLOCATED, 0)
    rig.claims.finished(request_of("sharer"), LOCAL)
    rig.claims.hear(exposed("reader"), ())
    rig.claims.finished(request_of("reader"), LOCAL)
    kept = (rig.claims._reading, rig.claims._was_read, rig.claims._spread)
    assert not any(kept)
