"""The figures of an engine, from two looks at its server."""

from __future__ import annotations

import math

import pytest
import yaml

from moriio_observed.top.change import change, restarted
from moriio_observed.top.engine import PEERS, RANK_SLOW_FACTOR, RANK_SLOW_S, Counted, Engine
from tests.unit.doctor.patients import ROOT
from tests.unit.top.pages import (
    blocked,
    healthy,
    info,
    line,
    only,
    recorded,
    rows,
    scrape_of,
    seen,
    steps,
    waits,
)


def figures(*pages: str, now: float = 2.0) -> Engine:
    engine = only(*pages, now=now).engine
    assert engine is not None
    return engine


def exposed(count: float, cause: str = "timeout", action: str = "reported", **more: str) -> str:
    labels = {"certainty": "certain", **more}
    return line("exposed_requests_total", count, cause=cause, action=action, **labels)


# Counters between two looks


def test_a_counter_has_what_it_gained_its_rate_and_its_total() -> None:
    engine = figures(healthy() + line("requests_total", 10), healthy() + line("requests_total", 16))
    assert engine.requests == Counted(gained=6, total=16, per_s=3)


def test_after_one_look_there_are_totals_and_no_rates() -> None:
    engine = figures(healthy() + line("requests_total", 10))
    assert engine.requests == Counted(gained=None, total=10, per_s=None)
    assert engine.waits == {}


def test_a_series_that_is_new_counts_whole() -> None:
    engine = figures(healthy(), healthy() + exposed(4))
    assert engine.exposed["timeout"].gained == 4


def test_a_counter_that_fell_means_another_process_and_everything_counts_from_0() -> None:
    before = scrape_of(line("requests_total", 10) + line("reads_posted_total", 5))
    after = scrape_of(line("requests_total", 3) + line("reads_posted_total", 7))
    assert restarted(before, after)
    gained = change(before, after)
    assert gained.total("moriio_requests_total") == 3
    assert gained.total("moriio_reads_posted_total") == 7


def test_another_start_time_means_another_process_though_no_counter_fell() -> None:
    before, after = (
        scrape_of(f"process_start_time_seconds {start}\n" + line("requests_total", 5))
        for start in (100, 200)
    )
    assert restarted(before, after)
    assert change(before, after).total("moriio_requests_total") == 5


def test_a_gauge_that_fell_means_nothing() -> None:
    before, after = (scrape_of(line("reads_in_flight", value)) for value in (5, 0))
    assert not restarted(before, after)


def test_a_restart_is_told_for_as_long_as_one_watches() -> None:
    engine = figures(healthy(10), healthy(3), healthy(4), now=7.0)
    assert engine.restarted_s == 5
    assert figures(healthy(10), healthy(11)).restarted_s is None


# Exposure


def test_exposed_requests_are_told_by_cause_and_what_a_guard_caught_apart() -> None:
    before = exposed(1) + exposed(0, "failed") + exposed(0, "failed", "recomputed")
    after = (
        exposed(3)
        + exposed(2, certainty="possible")
        + exposed(2, "failed")
        + exposed(8, "failed", "recomputed")
    )
    engine = figures(healthy() + before, healthy() + after)
    assert {cause: each.per_s for cause, each in engine.exposed.items()} == {
        "failed": 1,
        "timeout": 2,
    }
    assert {action: each.per_s for action, each in engine.caught.items()} == {"recomputed": 4}


def test_unprotected_steps_are_told_by_certainty() -> None:
    pages = [
        healthy()
        + line("unprotected_steps_total", certain, cause="timeout", certainty="certain")
        + line("unprotected_steps_total", 3, cause="failed", certainty="certain")
        + line("unprotected_steps_total", possible, cause="no_barrier", certainty="possible")
        for certain, possible in ((1, 0), (2, 8))
    ]
    engine = figures(*pages)
    assert engine.unprotected["certain"] == Counted(1, 5, 0.5)
    assert engine.unprotected["possible"] == Counted(8, 8, 4)


# Waits


def test_quantiles_are_those_of_the_waits_since_the_last_look_by_site_and_of_all() -> None:
    before = waits({"0.1": 100, "0.5": 100, "+Inf": 100}, site="layer")
    before += waits({"0.1": 0, "0.5": 0, "+Inf": 0}, site="step")
    after = waits({"0.1": 100, "0.5": 104, "+Inf": 104}, site="layer")
    after += waits({"0.1": 4, "0.5": 4, "+Inf": 4}, site="step")
    found = figures(healthy() + before, healthy() + after).waits
    assert found["layer"].count == 4
    assert found["layer"].p50 == pytest.approx(0.3)
    assert found["step"].p50 == pytest.approx(0.05)
    assert found["all"].count == 8
    assert found["all"].p99 == pytest.approx(0.492)


def test_without_a_wait_there_is_no_quantile() -> None:
    page = healthy() + waits({"0.1": 5, "+Inf": 5}, site="layer")
    assert figures(page, page).waits["all"].p50 is None


# Reads


def test_reads_in_flight_add_up_and_the_oldest_is_that_of_any_rank() -> None:
    page = healthy() + "".join(
        line("reads_in_flight", 2, tp_rank=rank)
        + line("oldest_read_age_seconds", age, tp_rank=rank)
        for rank, age in (("0", 1.5), ("1", 9.0))
    )
    engine = figures(page)
    assert (engine.in_flight, engine.oldest_s) == (4, 9.0)


def test_the_deadline_is_the_nearest_that_is_in_force() -> None:
    deadlines = line("transfer_timeout_seconds", 30) + line("recv_abort_timeout_seconds", 20)
    assert figures(healthy() + deadlines).deadline_s == 20
    assert figures(healthy()).deadline_s is None


def test_a_gauge_that_the_engine_does_not_know_is_not_a_number() -> None:
    page = healthy() + line("reads_in_flight", math.nan, tp_rank="0")
    page += line("reads_in_flight", 3, tp_rank="1")
    known = figures(page).in_flight
    assert known is not None
    assert math.isnan(known)


# Ranks


def ranks(*milliseconds: float) -> dict[str, bool]:
    """Which ranks are slow that waited so long in each of 10 steps."""
    names = [str(rank) for rank in range(len(milliseconds))]
    before = "".join(blocked(5, 100, rank) for rank in names)
    after = "".join(
        blocked(5 + each / 100, 110, rank) for rank, each in zip(names, milliseconds, strict=True)
    )
    found = figures(healthy() + before, healthy() + after).ranks
    assert [found[name].blocked_s for name in names] == pytest.approx(
        [each / 1000 for each in milliseconds]
    )
    return {name: rank.slow for name, rank in found.items()}


def test_a_rank_that_waits_much_longer_than_its_peers_is_slow() -> None:
    assert ranks(10, 10, 50, 10) == {"0": False, "1": False, "2": True, "3": False}


def test_a_rank_is_not_slow_by_little_by_next_to_nothing_or_without_peers() -> None:
    assert not any(ranks(20, 20, 50).values())
    assert not any(ranks(1, 1, 5).values())
    assert not any(ranks(1, 500).values())


def test_when_a_rank_is_slow_is_what_the_alert_has() -> None:
    thresholds = yaml.safe_load((ROOT / "alerts/values.yaml").read_text())["thresholds"]
    assert thresholds["peers"] == PEERS
    assert thresholds["rank_slow_factor"] == RANK_SLOW_FACTOR
    assert thresholds["rank_slow_seconds"] == RANK_SLOW_S


# Several engines, and the other side


def test_each_engine_behind_a_server_is_a_row_of_its_own() -> None:
    pages = [info() + steps(done) + info(engine="1") + steps(1, engine="1") for done in (0, 5)]
    found = rows(seen(*pages))
    assert [row.name for row in found] == ["decode.example:8000 0", "decode.example:8000 1"]
    assert [row.engine and row.engine.key.engine for row in found] == ["0", "1"]


def test_a_prefill_engine_says_what_it_holds_and_what_was_released() -> None:
    pages = [
        info(role="kv_producer") + line("deferred_sends", 7) + line("releases_total", count)
        for count in (2, 12)
    ]
    engine = figures(*pages)
    assert engine.sends
    assert (engine.held, engine.released.per_s) == (7, 5)


def test_when_an_engine_did_its_last_step_is_remembered() -> None:
    assert figures(healthy(1), healthy(2), healthy(2), healthy(2), now=6.0).quiet_s == 4
    assert figures(healthy(1), healthy(2), now=2.0).quiet_s == 0


def test_the_figures_of_a_real_engine_are_those_of_its_pages() -> None:
    engine = figures(recorded("decode", -2), recorded("decode", -1))
    assert engine.info["vllm_version"] == "0.30.0"
    assert engine.exposed == {"full_graph": Counted(112, 5899, 56)}
    assert engine.unprotected["certain"] == Counted(88, 3778, 44)
    assert engine.unprotected["possible"] == Counted(0, 1657, 0)
    assert (engine.in_flight, engine.deadline_s, engine.running) == (312, 30, 21)
    sender = figures(recorded("prefill", -2), recorded("prefill", -1))
    assert sender.sends
    assert sender.released.gained is not None
    assert sender.released.gained > 0
