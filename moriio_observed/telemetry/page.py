"""One rank's own Prometheus page, made of its counts when somebody asks for it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Exemplar as ShownExemplar
from prometheus_client.utils import floatToGoString

from moriio_observed.telemetry.aggregate import Exemplar
from moriio_observed.telemetry.catalog import PREFIX, Instrument, Kind
from moriio_observed.telemetry.readings import Readings

# As vLLM's /metrics writes them, so that buckets of both pages are the same series.
_le: Callable[[float], str] = floatToGoString

_FAMILIES: Mapping[Kind, Any] = {
    Kind.COUNTER: CounterMetricFamily,
    Kind.GAUGE: GaugeMetricFamily,
    Kind.HISTOGRAM: HistogramMetricFamily,
}


class Page:
    """A collector for prometheus_client, which writes classic text or OpenMetrics as asked for.

    HELP texts, labels and buckets are those of vLLM's /metrics. Exemplars go into OpenMetrics
    only, as the classic text has none; there are no `_created` series in either.

    Args:
        readings: What one rank counts.
        labels: vLLM's own labels and their values, on every series.
    """

    def __init__(self, readings: Readings, labels: Mapping[str, str]) -> None:
        self._readings = readings
        self._exposition = readings.exposition
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        """Yield every instrument with the series it has now."""
        families = {
            name: self._family(instrument)
            for name, instrument in self._exposition.instruments.items()
        }
        reading = self._readings.now()
        for key, number in reading.numbers.items():
            if (found := self._exposition.find(key)) is not None:
                instrument, labels = found
                families[instrument.name].add_metric(self._values(instrument, labels), number)
        for key, (counts, total) in reading.histograms.items():
            if (found := self._exposition.find(key)) is not None:
                instrument, labels = found
                buckets = self._buckets(instrument, counts, reading.exemplars.get(key, {}))
                families[instrument.name].add_metric(
                    self._values(instrument, labels), buckets, total
                )
        yield from families.values()

    def _family(self, instrument: Instrument) -> Any:
        return _FAMILIES[instrument.kind](
            PREFIX + instrument.name,
            instrument.help,
            labels=[*self._labels, *self._exposition.labels(instrument)],
        )

    def _values(self, instrument: Instrument, labels: Mapping[str, str]) -> list[str]:
        shown = self._exposition.labels(instrument)
        return [*self._labels.values(), *(labels[label] for label in shown)]

    def _buckets(
        self, instrument: Instrument, counts: Sequence[int], exemplars: Mapping[int, Exemplar]
    ) -> list[tuple[str, float] | tuple[str, float, ShownExemplar]]:
        bounds = (*self._exposition.bounds(instrument), math.inf)
        at_most = itertools.accumulate(counts)
        return [
            (_le(bound), count, *_shown(exemplars.get(bucket)))
            for bucket, (bound, count) in enumerate(zip(bounds, at_most, strict=True))
        ]


def _shown(exemplar: Exemplar | None) -> tuple[ShownExemplar] | tuple[()]:
    if exemplar is None:
        return ()
    trace = {"trace_id": f"{exemplar.trace_id:032x}", "span_id": f"{exemplar.span_id:016x}"}
    return (ShownExemplar(trace, exemplar.value, exemplar.at),)
