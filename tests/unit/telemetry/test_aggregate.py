"""The hot path's series, and the snapshots taken of them."""

import json
import math
import pickle
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moriio_observed.telemetry import aggregate
from moriio_observed.telemetry.aggregate import (
    Aggregate,
    Exemplar,
    Payload,
    empty,
    make_key,
    merge,
    split_key,
)
from moriio_observed.telemetry.exponential import MOST_BUCKETS, SCALE, Exponential


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def make(source: str = "w0", **kwargs: object) -> Aggregate:
    return Aggregate(source=source, clock=Clock(), **kwargs)


def value_of(payload: Payload | None, key: str, source: str = "w0") -> float:
    assert payload is not None
    return payload["gauges"][key][source][1]


def test_the_same_name_and_labels_give_the_same_series() -> None:
    ours = make()
    assert ours.counter("barrier_timeouts_total", site="layer") is ours.counter(
        "barrier_timeouts_total", site="layer"
    )
    assert ours.counter("barrier_timeouts_total", site="layer") is not ours.counter(
        "barrier_timeouts_total", site="step"
    )
    assert ours.gauge("reads_in_flight") is ours.gauge("reads_in_flight")
    assert ours.histogram("post_seconds") is ours.histogram("post_seconds")


@pytest.mark.parametrize(
    ("ask", "error", "says"),
    [
        (lambda a: a.counter("no_such_total"), KeyError, "no_such_total"),
        (lambda a: a.counter("post_seconds"), ValueError, "histogram, not a counter"),
        (lambda a: a.gauge("requests_total"), ValueError, "counter, not a gauge"),
        (lambda a: a.histogram("reads_in_flight"), ValueError, "gauge, not a histogram"),
        (lambda a: a.counter("barrier_timeouts_total"), ValueError, "site"),
        (lambda a: a.counter("requests_total", site="layer"), ValueError, "site"),
        (lambda a: a.counter("barrier_timeouts_total", site="x"), ValueError, "'x'"),
    ],
)
def test_what_the_catalogue_does_not_have_is_refused(
    ask: Callable[[Aggregate], object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        ask(make())


def test_the_aggregate_fills_in_its_rank() -> None:
    ours = make(tp_rank="3")
    ours.histogram("barrier_wait_seconds", site="layer").observe(1)
    delta = ours.delta()
    assert delta is not None
    assert list(delta["histograms"]) == ["barrier_wait_seconds|layer|3"]


def test_a_delta_holds_what_changed_since_the_last_one() -> None:
    ours = make()
    posted = ours.counter("reads_posted_total")
    ours.counter("reads_landed_total")
    posted.inc(3)
    assert ours.delta() == {**empty(), "counters": {"reads_posted_total": 3}}
    posted.inc()
    assert ours.delta() == {**empty(), "counters": {"reads_posted_total": 1}}


def test_nothing_changed_is_none() -> None:
    ours = make()
    ours.counter("reads_posted_total")
    ours.gauge("deferred_sends")
    ours.histogram("post_seconds")
    assert ours.delta() is None
    ours.histogram("post_seconds").observe(0)
    assert ours.delta() is not None
    assert ours.delta() is None


def test_an_observation_counts_in_the_first_bucket_that_holds_it() -> None:
    ours = make(wait_buckets=(1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 7.0):
        ours.histogram("post_seconds").observe(value)
    delta = ours.delta()
    assert delta is not None
    assert delta["histograms"] == {"post_seconds": [[2, 2, 1], 12.0]}


def test_bytes_have_their_own_buckets() -> None:
    ours = make(wait_buckets=(1.0,))
    ours.histogram("request_read_bytes").observe(64 * 1024)
    delta = ours.delta()
    assert delta is not None
    counts, total = delta["histograms"]["request_read_bytes"]
    assert (counts[0], len(counts), total) == (1, 11, 64 * 1024)


def test_a_gauge_is_sent_when_it_was_set_even_to_the_same_value() -> None:
    ours = make()
    gauge = ours.gauge("reads_in_flight")
    gauge.set(2)
    assert value_of(ours.delta(), "reads_in_flight|0") == 2
    gauge.set(2)
    assert value_of(ours.delta(), "reads_in_flight|0") == 2
    assert ours.delta() is None


def test_a_later_delta_of_a_gauge_wins_though_the_clock_steps_back() -> None:
    clock = Clock()
    ours = Aggregate(source="w0", clock=clock)
    ours.gauge("reads_in_flight").set(9)
    first = ours.delta()
    clock.now -= 500
    ours.gauge("reads_in_flight").set(1)
    second = ours.delta()
    assert first is not None
    assert second is not None
    assert value_of(merge(second, first), "reads_in_flight|0") == 1


def test_cumulative_holds_everything_and_takes_nothing_from_the_next_delta() -> None:
    ours = make()
    ours.counter("reads_posted_total").inc(2)
    ours.histogram("post_seconds").observe(1)
    ours.gauge("deferred_sends").set(4)
    ours.delta()
    ours.counter("reads_posted_total").inc()
    whole = ours.cumulative()
    assert whole["counters"] == {"reads_posted_total": 3}
    assert whole["histograms"]["post_seconds"][1] == 1
    assert value_of(whole, "deferred_sends") == 4
    assert ours.delta() == {**empty(), "counters": {"reads_posted_total": 1}}


def test_a_series_may_be_made_while_a_delta_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = make()
    ours.counter("reads_posted_total").inc()
    take = aggregate.Counter.take

    def take_beside_another_thread(counter: aggregate.Counter) -> float:
        ours.counter("reads_landed_total").inc()
        return take(counter)

    monkeypatch.setattr(aggregate.Counter, "take", take_beside_another_thread)
    assert ours.delta() == {**empty(), "counters": {"reads_posted_total": 1}}
    monkeypatch.undo()
    assert ours.delta() == {**empty(), "counters": {"reads_landed_total": 1}}


def test_series_have_no_room_for_more_than_their_numbers() -> None:
    for series in (
        aggregate.Counter(),
        aggregate.Gauge(),
        aggregate.Histogram((1.0,)),
        aggregate.ExponentialHistogram((1.0,)),
    ):
        assert not hasattr(series, "__dict__")


def test_a_payload_is_plain_enough_for_json_and_pickle() -> None:
    ours = make()
    ours.counter("remote_reads_total", remote="10.0.0.1:7301").inc()
    ours.histogram("post_seconds").observe(0.25)
    ours.gauge("reads_in_flight").set(1)
    delta = ours.delta()
    assert json.loads(json.dumps(delta)) == delta
    assert pickle.loads(pickle.dumps(delta)) == delta  # noqa: S301 - our own bytes


@given(st.lists(st.text()))
def test_a_key_gives_back_what_it_was_made_of(values: list[str]) -> None:
    assert split_key(make_key("requests_total", values)) == ("requests_total", tuple(values))


def test_merging_different_buckets_says_what_to_look_at() -> None:
    one: Payload = {**empty(), "histograms": {"post_seconds": [[1, 0], 1.0]}}
    other: Payload = {**empty(), "histograms": {"post_seconds": [[1, 0, 0], 1.0]}}
    with pytest.raises(ValueError, match=r"post_seconds.*wait_buckets"):
        merge(one, other)


def test_readings_of_different_sources_stand_side_by_side() -> None:
    def reading(source: str, stamp: float, value: float) -> Payload:
        return {**empty(), "gauges": {"hook_installed|x": {source: [stamp, value]}}}

    both = merge(merge(reading("a", 1, 1), reading("b", 2, 0)), reading("a", 3, 5))
    assert both["gauges"] == {"hook_installed|x": {"a": [3, 5], "b": [2, 0]}}


# Multiples of a power of two add up exactly in any order.
EXACT = st.integers(0, 2**20).map(lambda n: n / 1024)
KEYS = st.sampled_from(["a", "b|x", "b|y"])
PAYLOADS = st.fixed_dictionaries(
    {
        "counters": st.dictionaries(KEYS, EXACT),
        "histograms": st.dictionaries(
            KEYS,
            st.tuples(st.lists(st.integers(0, 9), min_size=3, max_size=3), EXACT).map(list),
        ),
        "gauges": st.dictionaries(
            KEYS,
            st.dictionaries(
                st.sampled_from(["w0", "w1"]),
                st.tuples(st.integers(0, 3), st.integers(0, 3)).map(list),
            ),
        ),
    }
)


@given(PAYLOADS, PAYLOADS, PAYLOADS)
def test_merge_is_associative(a: Payload, b: Payload, c: Payload) -> None:
    assert merge(merge(a, b), c) == merge(a, merge(b, c))


@given(PAYLOADS, PAYLOADS)
def test_merge_is_commutative(a: Payload, b: Payload) -> None:
    assert merge(a, b) == merge(b, a)


@given(PAYLOADS)
def test_an_empty_payload_changes_nothing(a: Payload) -> None:
    assert merge(a, empty()) == a


@given(PAYLOADS, PAYLOADS)
def test_merge_changes_neither_side_and_shares_nothing(a: Payload, b: Payload) -> None:
    before = json.dumps([a, b])
    merged = merge(a, b)
    for counts, _ in merged["histograms"].values():
        counts[0] += 1
    for sources in merged["gauges"].values():
        for reading in sources.values():
            reading[1] += 1
    assert json.dumps([a, b]) == before


EVENTS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["count", "observe", "set", "cut"]), EXACT)
)


@given(EVENTS, st.randoms(use_true_random=False))
def test_any_split_over_deltas_and_sources_merges_to_the_same_totals(
    events: list[tuple[int, str, float]], random: st.DataObject
) -> None:
    parts = [make(f"w{index}") for index in range(3)]
    whole = make("whole")
    last: dict[str, float] = {}
    deltas = []
    for index, event, value in events:
        for ours in (parts[index], whole):
            if event == "count":
                ours.counter("layer_wait_seconds_total", layer="0").inc(value)
            elif event == "observe":
                ours.histogram("post_seconds").observe(value)
            elif event == "set":
                ours.gauge("deferred_sends").set(value)
                last[f"w{index}"] = value
        if event == "cut":
            deltas.append(parts[index].delta())
    deltas += [ours.delta() for ours in parts]
    random.shuffle(deltas)
    merged = empty()
    for delta in deltas:
        merged = merge(merged, delta or empty())
    expected = whole.delta() or empty()
    assert merged["counters"] == expected["counters"]
    assert merged["histograms"] == expected["histograms"]
    sources = merged["gauges"].get("deferred_sends", {})
    assert {source: value for source, (_, value) in sources.items()} == last


def test_it_knows_when_it_was_made() -> None:
    clock = Clock()
    ours = Aggregate(source="w0", clock=clock)
    clock.now += 5
    assert ours.started_at == 1000.0


# Exemplars.


def test_the_latest_exemplar_of_each_bucket_is_kept() -> None:
    ours = make(wait_buckets=(1.0, 2.0))
    post = ours.histogram("post_seconds")
    for value, at in ((0.5, 1.0), (1.0, 2.0), (9.0, 3.0)):
        post.exemplify(value, at, 0xA, 0xB)
    ours.histogram("step_seconds").observe(1)
    assert ours.exemplars() == {
        "post_seconds": {0: Exemplar(1.0, 2.0, 0xA, 0xB), 2: Exemplar(9.0, 3.0, 0xA, 0xB)}
    }


def test_an_exemplar_is_no_observation_and_does_not_travel() -> None:
    ours = make()
    ours.histogram("post_seconds").exemplify(0.5, 1.0, 1, 2)
    assert ours.delta() is None


def test_exemplars_handed_out_do_not_change_later() -> None:
    ours = make()
    ours.histogram("post_seconds").exemplify(0.5, 1.0, 1, 2)
    before = ours.exemplars()
    ours.histogram("post_seconds").exemplify(0.5, 2.0, 3, 4)
    assert before["post_seconds"] != ours.exemplars()["post_seconds"]


# Exponential buckets.


def exponential_of(values: list[float]) -> Exponential:
    ours = make(exponential=True)
    post = ours.histogram("post_seconds")
    for value in values:
        post.observe(value)
    return ours.exponentials()["post_seconds"]


def test_there_are_no_exponential_buckets_unless_asked_for() -> None:
    ours = make()
    ours.histogram("post_seconds").observe(1)
    assert ours.exponentials() == {}


def test_exponential_buckets_are_counted_beside_the_explicit_ones() -> None:
    plain, both = make(), make(exponential=True)
    for ours in (plain, both):
        for value in (0.0, 0.001, 3.0):
            ours.histogram("post_seconds").observe(value)
    assert both.delta() == plain.delta()


@pytest.mark.parametrize("power", [-20, -1, 0, 1, 20])
def test_a_power_of_two_is_the_upper_bound_of_its_bucket(power: int) -> None:
    below, above = exponential_of([2.0**power]), exponential_of([math.nextafter(2.0**power, 9e9)])
    assert below.offset + 1 == above.offset == power << SCALE


def test_0_has_a_count_of_its_own() -> None:
    assert exponential_of([0.0, 0.0]) == Exponential(SCALE, 2, 0, (), 0.0)


# From far below a clock's resolution to far above a request's bytes.
VALUES = st.one_of(st.just(0.0), st.floats(min_value=1e-12, max_value=1e15))
MANY = st.lists(VALUES, max_size=50)


def upper_bound(scale: int, index: int) -> float:
    return math.exp2(math.ldexp(index + 1, -scale))


def assert_holds(found: Exponential, values: list[float]) -> None:
    """The values, in order, lie within the bounds of the buckets that count them."""
    expected = sorted(value for value in values if value > 0)
    buckets = [
        found.offset + place for place, count in enumerate(found.counts) for _ in range(count)
    ]
    assert len(buckets) == len(expected)
    for value, index in zip(expected, buckets, strict=True):
        rounding = 1 + 1e-12
        assert value <= upper_bound(found.scale, index) * rounding
        assert value * rounding > upper_bound(found.scale, index - 1)


@given(MANY)
def test_every_value_lies_within_its_buckets_bounds(values: list[float]) -> None:
    assert_holds(exponential_of(values), values)


@given(MANY)
def test_every_observation_is_counted_in_no_more_buckets_than_may_leave(
    values: list[float],
) -> None:
    found = exponential_of(values)
    assert found.count == len(values)
    assert found.zero_count == values.count(0.0)
    assert found.sum == pytest.approx(sum(values))
    assert len(found.counts) <= MOST_BUCKETS


@given(st.lists(st.floats(min_value=1e-12, max_value=1e15), min_size=1, max_size=50))
def test_buckets_are_no_coarser_than_they_must_be(values: list[float]) -> None:
    found = exponential_of(values)
    assert found.scale == SCALE or 2 * len(found.counts) > MOST_BUCKETS


@pytest.mark.parametrize(
    ("filled", "scale", "buckets"),
    [(MOST_BUCKETS, SCALE, MOST_BUCKETS), (MOST_BUCKETS + 1, SCALE - 1, MOST_BUCKETS // 2 + 1)],
)
def test_one_bucket_more_than_may_leave_halves_their_number(
    filled: int, scale: int, buckets: int
) -> None:
    found = exponential_of([2 ** math.ldexp(index + 0.5, -SCALE) for index in range(filled)])
    assert (found.scale, len(found.counts)) == (scale, buckets)


@given(MANY, MANY)
def test_buckets_of_different_scales_add_up(ours: list[float], theirs: list[float]) -> None:
    together = exponential_of(ours).plus(exponential_of(theirs))
    assert together.count == len(ours) + len(theirs)
    assert together.zero_count == [*ours, *theirs].count(0.0)
    assert len(together.counts) <= MOST_BUCKETS
    assert_holds(together, [*ours, *theirs])


@given(MANY, MANY, MANY)
def test_adding_buckets_is_associative_but_for_the_sums_rounding(
    a: list[float], b: list[float], c: list[float]
) -> None:
    one, two, three = map(exponential_of, (a, b, c))
    left, right = one.plus(two).plus(three), one.plus(two.plus(three))
    assert left.sum == pytest.approx(right.sum)
    assert (left.zero_count, left.count) == (right.zero_count, right.count)
    assert_holds(left, [*a, *b, *c])
    assert_holds(right, [*a, *b, *c])


@given(MANY, MANY)
def test_what_was_there_before_can_be_taken_off(before: list[float], added: list[float]) -> None:
    left = exponential_of([*before, *added]).minus(exponential_of(before))
    assert left.count == len(added)
    assert left.zero_count == added.count(0.0)
    assert_holds(left, added)
