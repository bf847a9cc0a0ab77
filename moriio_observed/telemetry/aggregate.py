"""Counters and histograms for the hot path, and the snapshots made of them.

Plain numbers without locks: each series has one writing thread, and the reader only takes
differences, so what it misses now it sees next time. Pure: it imports nothing but the standard
library and the catalogue.

A snapshot (`Payload`) is made of dicts, lists, strings and numbers only, so that it survives
pickle and msgpack:

    {"counters": {key: n},
     "histograms": {key: [[count per bucket, ..., above the last bound], sum]},
     "gauges": {key: {source: [stamp, value]}}}

A key is the instrument's name and its label values in catalogue order, joined by `|`.

Exemplars and exponential buckets stay in the process: they go out by its own ways only.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, TypeVar

from moriio_observed.telemetry.catalog import CATALOG, WAIT_BUCKETS, Instrument, Kind
from moriio_observed.telemetry.exponential import Exponential, index_of

_T = TypeVar("_T")


class Payload(TypedDict):
    """What changed, or the state since start; see the module for the shape."""

    counters: dict[str, float]
    histograms: dict[str, list[Any]]
    gauges: dict[str, dict[str, list[float]]]


def empty() -> Payload:
    """Return a payload that says nothing: the neutral element of `merge`."""
    return {"counters": {}, "histograms": {}, "gauges": {}}


def make_key(name: str, values: Sequence[str] = ()) -> str:
    """Join an instrument's name and its label values, in catalogue order, into a payload key."""
    return "|".join((name, *(value.replace("%", "%25").replace("|", "%7C") for value in values)))


def split_key(key: str) -> tuple[str, tuple[str, ...]]:
    """Return the name and the label values that `make_key` joined."""
    name, *values = key.split("|")
    return name, tuple(value.replace("%7C", "|").replace("%25", "%") for value in values)


class Counter:
    """A sum that only grows."""

    __slots__ = ("_sent", "value")

    def __init__(self) -> None:
        self.value: float = 0
        self._sent: float = 0

    def inc(self, n: float = 1) -> None:
        """Add `n`, which must not be negative."""
        self.value += n

    def take(self) -> float:
        """Return what was added since the last call."""
        value = self.value
        taken = value - self._sent
        self._sent = value
        return taken


class Gauge:
    """A value that goes up and down."""

    __slots__ = ("_fresh", "value")

    def __init__(self) -> None:
        self.value: float | None = None
        self._fresh = False

    def set(self, value: float) -> None:
        """Replace the value."""
        self.value = value
        self._fresh = True

    def take(self) -> float | None:
        """Return the value if it was set since the last call."""
        if not self._fresh:
            return None
        # Lowered before the value is read: a value set in between is then sent again, not lost.
        self._fresh = False
        return self.value


class Exemplar(NamedTuple):
    """One observation, and the span in which it was made.

    Attributes:
        value: What was observed.
        at: When, in seconds since the epoch.
        trace_id: Of the span's trace, 128 bits.
        span_id: Of the span, 64 bits.
    """

    value: float
    at: float
    trace_id: int
    span_id: int


class Histogram:
    """Observations counted by the smallest upper bound that holds them."""

    __slots__ = ("_bounds", "_sent_counts", "_sent_sum", "counts", "exemplars", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float = 0
        self.exemplars: dict[int, Exemplar] = {}
        self._sent_counts = list(self.counts)
        self._sent_sum: float = 0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def exemplify(self, value: float, at: float, trace_id: int, span_id: int) -> None:
        """Make an observed value the example of its bucket; see `Exemplar`."""
        bucket = bisect_left(self._bounds, value)
        self.exemplars[bucket] = Exemplar(value, at, trace_id, span_id)

    def take(self) -> list[Any] | None:
        """Return bucket counts and sum added since the last call, None if nothing was."""
        counts, total = list(self.counts), self.sum
        if counts == self._sent_counts and total == self._sent_sum:
            return None
        taken = [
            [new - old for new, old in zip(counts, self._sent_counts, strict=True)],
            total - self._sent_sum,
        ]
        self._sent_counts, self._sent_sum = counts, total
        return taken


class ExponentialHistogram(Histogram):
    """A histogram that also counts in exponential buckets."""

    __slots__ = ("_cells", "_zeros")

    def __init__(self, bounds: Sequence[float]) -> None:
        super().__init__(bounds)
        self._cells: dict[int, int] = {}
        self._zeros = 0

    def observe(self, value: float) -> None:
        """Count one value."""
        super().observe(value)
        if value > 0:
            index = index_of(value)
            self._cells[index] = self._cells.get(index, 0) + 1
        else:
            self._zeros += 1

    def exponential(self) -> Exponential:
        """Return everything since start; any thread may ask."""
        return Exponential.of_cells(self._cells.copy(), self._zeros, self.sum)


class Aggregate:
    """The series of one source: a worker rank, a scheduler, a thread of either.

    Args:
        source: Names this source among all that report for one engine.
        tp_rank: The TP rank, filled in wherever an instrument has that label.
        wait_buckets: Upper bounds of the time histograms, in seconds, ascending.
        exponential: Whether histograms also count in exponential buckets.
        clock: Wall clock in seconds, which stamps gauge values.

    Attributes:
        started_at: When it was made, by that clock.
    """

    def __init__(
        self,
        *,
        source: str,
        tp_rank: str = "0",
        wait_buckets: Sequence[float] = WAIT_BUCKETS,
        exponential: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.started_at = clock()
        self._source = source
        self._tp_rank = tp_rank
        self._wait_buckets = tuple(wait_buckets)
        self._histogram = ExponentialHistogram if exponential else Histogram
        self._clock = clock
        self._stamp = 0.0
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}

    def counter(self, name: str, **labels: str) -> Counter:
        """Return the counter of this name and these labels, the same one every time.

        Raises:
            KeyError: The catalogue has no such instrument.
            ValueError: It is of another kind, or the labels are not its labels.
        """
        return self._series(Kind.COUNTER, self._counters, lambda _: Counter(), name, labels)

    def gauge(self, name: str, **labels: str) -> Gauge:
        """Return the gauge of this name and these labels; errors as `counter`."""
        return self._series(Kind.GAUGE, self._gauges, lambda _: Gauge(), name, labels)

    def histogram(self, name: str, **labels: str) -> Histogram:
        """Return the histogram of this name and these labels; errors as `counter`."""
        return self._series(
            Kind.HISTOGRAM,
            self._histograms,
            lambda instrument: self._histogram(instrument.buckets or self._wait_buckets),
            name,
            labels,
        )

    def delta(self) -> Payload | None:
        """Return what changed since the last call, None if nothing did.

        Call it from one thread only. A gauge counts as changed when it was set, even to the
        value it had.
        """
        payload = empty()
        # The dicts are copied since another thread may add a series meanwhile.
        for key, counter in self._counters.copy().items():
            if added := counter.take():
                payload["counters"][key] = added
        for key, histogram in self._histograms.copy().items():
            if (observed := histogram.take()) is not None:
                payload["histograms"][key] = observed
        values = {key: gauge.take() for key, gauge in self._gauges.copy().items()}
        self._stamp_gauges(payload, values)
        return payload if any(payload.values()) else None

    def cumulative(self) -> Payload:
        """Return everything since start. Leaves what `delta` returns next unchanged."""
        payload = empty()
        for key, counter in self._counters.copy().items():
            payload["counters"][key] = counter.value
        for key, histogram in self._histograms.copy().items():
            payload["histograms"][key] = [list(histogram.counts), histogram.sum]
        values = {key: gauge.value for key, gauge in self._gauges.copy().items()}
        self._stamp_gauges(payload, values)
        return payload

    def exemplars(self) -> dict[str, dict[int, Exemplar]]:
        """Return the latest exemplar of each bucket that has one, by key; any thread may ask."""
        return {
            key: histogram.exemplars.copy()
            for key, histogram in self._histograms.copy().items()
            if histogram.exemplars
        }

    def exponentials(self) -> dict[str, Exponential]:
        """Return the exponential buckets since start, by key; any thread may ask."""
        return {
            key: histogram.exponential()
            for key, histogram in self._histograms.copy().items()
            if isinstance(histogram, ExponentialHistogram)
        }

    def _series(
        self,
        kind: Kind,
        series: dict[str, _T],
        make: Callable[[Instrument], _T],
        name: str,
        labels: Mapping[str, str],
    ) -> _T:
        instrument = CATALOG.get(name)
        if instrument is None:
            raise KeyError(f"no instrument named {name!r} in the catalogue")
        if instrument.kind is not kind:
            raise ValueError(f"{name} is a {instrument.kind}, not a {kind}")
        if "tp_rank" in instrument.labels:
            labels = {"tp_rank": self._tp_rank, **labels}
        if labels.keys() != set(instrument.labels):
            raise ValueError(f"{name} has the labels {instrument.labels}, not {tuple(labels)}")
        for label, allowed in instrument.closed.items():
            if labels[label] not in allowed:
                raise ValueError(f"{name}: {label} is one of {allowed}, not {labels[label]!r}")
        key = make_key(name, [labels[label] for label in instrument.labels])
        # One atomic step, so that two threads asking at once get the same series.
        return series.get(key) or series.setdefault(key, make(instrument))

    def _stamp_gauges(self, payload: Payload, values: Mapping[str, float | None]) -> None:
        # A later snapshot must win the merge even when the wall clock stands still or steps back.
        self._stamp = max(self._clock(), math.nextafter(self._stamp, math.inf))
        for key, value in values.items():
            if value is not None:
                payload["gauges"][key] = {self._source: [self._stamp, value]}


def merge(a: Payload, b: Payload) -> Payload:
    """Return what both payloads say together; neither is changed.

    Associative and commutative (sums of seconds to within rounding), and nothing is lost: counts
    and sums add up, gauges of different sources stand side by side, and of one source the latest
    stamp wins. The catalogue's fold over sources happens only where the series leave vLLM.

    Raises:
        ValueError: A histogram has different bucket counts on both sides.
    """
    merged: Payload = {
        "counters": dict(a["counters"]),
        "histograms": {key: [list(counts), total] for key, (counts, total) in _histograms(a)},
        "gauges": {
            key: {source: list(reading) for source, reading in sources.items()}
            for key, sources in a["gauges"].items()
        },
    }
    for key, n in b["counters"].items():
        merged["counters"][key] = merged["counters"].get(key, 0) + n
    for key, (counts, total) in _histograms(b):
        ours = merged["histograms"].get(key)
        merged["histograms"][key] = (
            [list(counts), total] if ours is None else _added(key, ours, counts, total)
        )
    for key, sources in b["gauges"].items():
        ours_by_source = merged["gauges"].setdefault(key, {})
        for source, reading in sources.items():
            ours_by_source[source] = list(max(ours_by_source.get(source, reading), reading))
    return merged


def _histograms(payload: Payload) -> list[tuple[str, tuple[list[int], float]]]:
    return [(key, (entry[0], entry[1])) for key, entry in payload["histograms"].items()]


def _added(key: str, ours: list[Any], counts: list[int], total: float) -> list[Any]:
    if len(ours[0]) != len(counts):
        raise ValueError(
            f"{key}: cannot merge {len(counts)} buckets into {len(ours[0])}; are"
            " wait_buckets the same on every rank?"
        )
    return [[x + y for x, y in zip(ours[0], counts, strict=True)], ours[1] + total]
