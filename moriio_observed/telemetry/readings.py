"""Everything the aggregates of one process can say, taken together, when somebody asks."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from moriio_observed.telemetry.aggregate import Aggregate, Exemplar, empty, merge, split_key
from moriio_observed.telemetry.catalog import CATALOG, Kind, Scope
from moriio_observed.telemetry.exponential import Exponential
from moriio_observed.telemetry.exposition import Exposition, folded

Counted = tuple[Sequence[int], float]
"""Observations per bucket, the last above all bounds, and their sum."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was counted since start, by payload key.

    Attributes:
        numbers: Counters and gauges, these folded over the aggregates.
        histograms: Histograms.
        exponentials: The same in exponential buckets, where these are counted.
        exemplars: The latest exemplar of each bucket that has one, by key and bucket.
    """

    numbers: Mapping[str, float]
    histograms: Mapping[str, Counted]
    exponentials: Mapping[str, Exponential]
    exemplars: Mapping[str, Mapping[int, Exemplar]]


class Readings:
    """The series of one process.

    Args:
        aggregates: What it counts; they may go on counting while they are read.
        exposition: Which of their series are shown.
        static: Gauges set once at start, by payload key, where no aggregate knows better.
        scopes: Whose series stand at 0 from the start.
        layers: How many layers the model has.
        tp_ranks: The TP ranks that count here.
    """

    def __init__(
        self,
        aggregates: Sequence[Aggregate],
        exposition: Exposition,
        *,
        static: Mapping[str, float],
        scopes: Collection[Scope],
        layers: int,
        tp_ranks: Collection[int],
    ) -> None:
        self._aggregates = aggregates
        self.exposition = exposition
        self._numbers: dict[str, float] = {}
        self._histograms: dict[str, Counted] = {}
        for key in exposition.zero_keys(scopes, layers=layers, tp_ranks=tp_ranks):
            instrument = CATALOG[split_key(key)[0]]
            if instrument.kind is Kind.HISTOGRAM:
                self._histograms[key] = [0] * (len(exposition.bounds(instrument)) + 1), 0
            else:
                self._numbers[key] = 0
        self._numbers.update(static)

    @property
    def started_at(self) -> float:
        """Since when it is counted, seconds since the epoch."""
        return min(aggregate.started_at for aggregate in self._aggregates)

    def now(self) -> Reading:
        """Read everything; any thread may ask."""
        payload = functools.reduce(merge, [each.cumulative() for each in self._aggregates], empty())
        gauges = {
            key: folded(CATALOG[split_key(key)[0]].fold, [value for _, value in sources.values()])
            for key, sources in payload["gauges"].items()
        }
        counted = {key: (counts, total) for key, (counts, total) in payload["histograms"].items()}
        return Reading(
            numbers={**self._numbers, **payload["counters"], **gauges},
            histograms={**self._histograms, **counted},
            exponentials=self._exponentials(),
            exemplars=self._exemplars(),
        )

    def _exponentials(self) -> Mapping[str, Exponential]:
        together: dict[str, Exponential] = {}
        for aggregate in self._aggregates:
            for key, found in aggregate.exponentials().items():
                known = together.get(key)
                together[key] = found if known is None else known.plus(found)
        return together

    def _exemplars(self) -> Mapping[str, Mapping[int, Exemplar]]:
        latest: dict[str, dict[int, Exemplar]] = {}
        for aggregate in self._aggregates:
            for key, buckets in aggregate.exemplars().items():
                known = latest.setdefault(key, {})
                for bucket, found in buckets.items():
                    known[bucket] = max(known.get(bucket, found), found, key=lambda each: each.at)
        return latest
