"""A lease's age is told across hosts, however their clocks are set; nonsense is no lease."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moriio_observed.lease import (
    LEASE_KEY,
    ROLLED_AFTER,
    SETTLED_AFTER,
    SETTLED_OVER,
    WINDOW_S,
    Clocks,
    Issuer,
    Lease,
)

GOOD_FOR_S = 60.0
FRESH = {"clock": "p", "issued_at": 1e9, "issued_mono": 10.0, "good_for_s": GOOD_FOR_S}

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
skews = st.floats(-1e6, 1e6)
delays = st.floats(0, 30)


class Hosts:
    """A prefill and a decode host in one true time, each with clocks of its own.

    Args:
        wall_skew_s: How far D's wall clock is ahead of P's.
        mono_offset_s: How far D's monotonic clock is ahead of P's.
        drift: How much faster D's monotonic clock runs than P's.
    """

    def __init__(
        self, wall_skew_s: float = 0.0, mono_offset_s: float = 0.0, drift: float = 0.0
    ) -> None:
        self.now = 0.0
        p_mono = max(0.0, -mono_offset_s)
        self.issuer = self._issuer(p_mono)
        self.clocks = Clocks(
            wall=lambda: 2e9 + self.now + wall_skew_s,
            monotonic=lambda: p_mono + mono_offset_s + self.now * (1 + drift),
        )

    def _issuer(self, p_mono: float) -> Issuer:
        return Issuer(wall=lambda: 2e9 + self.now, monotonic=lambda: p_mono + self.now)

    def restart_prefill(self) -> None:
        """P starts again on another host, whose monotonic clock stands elsewhere."""
        self.issuer = self._issuer(5e6)

    def issue(self) -> Lease:
        """A lease of P's, as it comes through JSON."""
        params = json.loads(json.dumps({LEASE_KEY: self.issuer.issue(GOOD_FOR_S)}))
        lease = Lease.read(params)
        assert lease is not None
        return lease

    def send(self, delay_s: float = 0.0) -> Lease:
        """A lease that P issues now and D sees after a delay."""
        lease = self.issue()
        self.now += delay_s
        self.clocks.arrived(lease)
        return lease

    def settle(self) -> None:
        """So many leases that D relies on what it has seen of P's clock."""
        for _ in range(SETTLED_AFTER):
            self.send()
            self.now += SETTLED_OVER * GOOD_FOR_S / (SETTLED_AFTER - 1)


def near(seconds: float) -> Any:
    return pytest.approx(seconds, abs=1e-3)


def test_a_lease_comes_through_json_as_it_was_issued() -> None:
    issuer = Issuer(wall=lambda: 2e9, monotonic=lambda: 12.5)
    params = json.loads(json.dumps({LEASE_KEY: issuer.issue(60)}))
    assert Lease.read(params) == Lease(issuer.clock_id, 2e9, 12.5, 60.0)


def test_each_prefill_process_has_a_clock_of_its_own() -> None:
    assert Issuer().clock_id != Issuer().clock_id


@pytest.mark.parametrize("params", [None, {}, [], "text", {LEASE_KEY: None}, {LEASE_KEY: [1]}])
def test_parameters_without_a_lease_have_none(params: Any) -> None:
    assert Lease.read(params) is None


@pytest.mark.parametrize("name", ["issued_at", "issued_mono", "good_for_s"])
@pytest.mark.parametrize("value", [None, "1", True, -1, math.nan, math.inf, 10**400, [1.0]])
def test_a_lease_with_a_number_that_is_none_is_no_lease(name: str, value: object) -> None:
    assert Lease.read({LEASE_KEY: FRESH}) is not None
    assert Lease.read({LEASE_KEY: {**FRESH, name: value}}) is None


@pytest.mark.parametrize("value", [None, "", 7, ["p"], "p" * 65])
def test_a_lease_needs_a_clock_with_a_name_of_bounded_length(value: object) -> None:
    assert Lease.read({LEASE_KEY: {**FRESH, "clock": value}}) is None


@pytest.mark.parametrize("name", FRESH)
def test_a_lease_with_a_part_missing_is_no_lease(name: str) -> None:
    given = {key: value for key, value in FRESH.items() if key != name}
    assert Lease.read({LEASE_KEY: given}) is None


@given(anything | st.fixed_dictionaries(dict.fromkeys(FRESH, anything)))
def test_whatever_a_router_makes_of_a_lease_reading_it_raises_nothing(value: object) -> None:
    lease = Lease.read({LEASE_KEY: value})
    if lease is not None:
        assert Clocks().age(lease) >= 0.0


@given(skews, skews, st.lists(delays, min_size=SETTLED_AFTER, max_size=2 * SETTLED_AFTER), delays)
def test_age_is_told_however_the_clocks_are_set_up_to_the_least_delay(
    wall_skew_s: float, mono_offset_s: float, on_the_way: list[float], held_s: float
) -> None:
    hosts = Hosts(wall_skew_s, mono_offset_s)
    for delay_s in on_the_way:
        hosts.send(delay_s)
        hosts.now += SETTLED_OVER * GOOD_FOR_S / (SETTLED_AFTER - 1)
    lease = hosts.send(held_s)
    assert hosts.clocks.age(lease) == near(held_s - min([*on_the_way, held_s]))
    assert hosts.clocks.left(lease) == near(GOOD_FOR_S - hosts.clocks.age(lease))


def test_a_lease_that_has_ended_has_less_than_nothing_left() -> None:
    hosts = Hosts()
    hosts.settle()
    lease = hosts.send(GOOD_FOR_S + 5)
    assert hosts.clocks.left(lease) == near(-5)


def test_a_lease_grows_older_while_its_request_waits_on_d() -> None:
    hosts = Hosts(wall_skew_s=500.0, mono_offset_s=-900.0)
    hosts.settle()
    lease = hosts.send()
    hosts.now += 70.0
    assert hosts.clocks.age(lease) == near(70.0)


@given(skews, skews)
def test_age_is_never_negative(wall_skew_s: float, mono_offset_s: float) -> None:
    hosts = Hosts(wall_skew_s, mono_offset_s)
    unseen = hosts.issue()
    assert hosts.clocks.age(unseen) >= 0.0
    hosts.settle()
    assert hosts.clocks.age(hosts.send()) >= 0.0


def test_the_first_lease_of_a_process_is_as_old_as_the_wall_clocks_say() -> None:
    hosts = Hosts(mono_offset_s=1234.0)
    assert hosts.clocks.age(hosts.send(70.0)) == near(70.0)


def test_a_wall_clock_that_is_behind_does_not_hide_what_the_monotonic_clocks_show() -> None:
    hosts = Hosts(wall_skew_s=-1000.0)
    early = hosts.send()
    hosts.now += 70.0
    hosts.send()
    assert hosts.clocks.age(early) == near(70.0)


def test_wall_clocks_are_not_asked_once_enough_leases_have_been_seen() -> None:
    hosts = Hosts(wall_skew_s=1000.0)
    assert hosts.clocks.age(hosts.send()) == near(1000.0)
    hosts.settle()
    assert hosts.clocks.age(hosts.send()) == near(0.0)


def test_many_leases_that_one_stall_has_held_up_are_late_all_the_same() -> None:
    hosts = Hosts()
    held = [hosts.issue() for _ in range(2 * SETTLED_AFTER)]
    hosts.now += 70.0
    for lease in held:
        hosts.clocks.arrived(lease)
    assert [hosts.clocks.age(lease) for lease in held] == [near(70.0)] * len(held)


def test_the_same_lease_again_does_not_count_as_another() -> None:
    hosts = Hosts()
    stale = hosts.send(70.0)
    for _ in range(2 * SETTLED_AFTER):
        hosts.clocks.arrived(stale)
    assert hosts.clocks.age(stale) == near(70.0)


def test_a_restarted_prefill_process_is_judged_by_its_own_clock() -> None:
    hosts = Hosts()
    hosts.settle()
    hosts.restart_prefill()
    assert hosts.clocks.age(hosts.send(3.0)) == near(3.0)


@pytest.mark.parametrize("drift", [1e-4, -1e-4])
def test_clock_drift_does_not_add_up_over_days(drift: float) -> None:
    hosts = Hosts(drift=drift)
    while hosts.now < 5 * 86400:
        hosts.send()
        hosts.now += 30.0
    most_s = abs(drift) * 2.5 * WINDOW_S
    assert hosts.clocks.age(hosts.send()) <= most_s
    assert hosts.clocks.age(hosts.send(20.0)) == pytest.approx(20.0, abs=most_s)


def test_what_was_seen_before_a_quiet_time_is_kept_until_enough_has_come_after_it() -> None:
    hosts = Hosts(wall_skew_s=1000.0)
    hosts.settle()
    for _ in range(ROLLED_AFTER):
        hosts.now += 10 * WINDOW_S
        assert hosts.clocks.age(hosts.send(70.0)) == near(70.0)


def test_the_process_not_heard_of_for_longest_is_forgotten() -> None:
    now = 50.0
    clocks = Clocks(wall=lambda: 2e9 + 7, monotonic=lambda: now, max_clocks=2)

    def lease(clock: str, issued_mono: float) -> Lease:
        return Lease(clock, 2e9, issued_mono, GOOD_FOR_S)

    for _ in range(SETTLED_AFTER):
        for clock in ("busy", "quiet"):
            clocks.arrived(lease(clock, now))
        now += SETTLED_OVER * GOOD_FOR_S
    clocks.arrived(lease("busy", now))
    clocks.arrived(lease("new", now))
    # By its own clock 0 s old; by the wall clock, which counts for a process not known, 7 s.
    assert clocks.age(lease("busy", now)) == near(0.0)
    assert clocks.age(lease("quiet", now)) == near(7.0)
