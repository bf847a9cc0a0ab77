"""Metrics over OTLP, made of the same counts as every other way out.

No OpenTelemetry instrument runs in the hot path: on the exporting thread the counts are rendered
into the classes its exporters take. Names are the catalogue's, so that OpenTelemetry's translation
to Prometheus gives the names of vLLM's /metrics again.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opentelemetry.sdk.metrics import Exemplar as OTelExemplar
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Buckets,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from moriio_observed import __version__
from moriio_observed.telemetry.catalog import CATALOG, Instrument, Kind
from moriio_observed.telemetry.exponential import SCALE, Exponential
from moriio_observed.telemetry.readings import Reading, Readings

_SCOPE = InstrumentationScope("moriio_observed", __version__)
_UNIT_SUFFIXES = {"s": "_seconds", "By": "_bytes"}
_NOTHING = Reading(numbers={}, histograms={}, exponentials={}, exemplars={})
_NONE_COUNTED = Exponential(SCALE, 0, 0, (), 0.0)
# Smallest and largest observation are not kept; the encoder leaves out what is None.
_NOT_KEPT: Any = None


def _bare(instrument: Instrument) -> str:
    """The name without what the translation adds by itself."""
    name = instrument.name.removesuffix("_total")
    return name.removesuffix(_UNIT_SUFFIXES.get(instrument.unit, ""))


_TAKEN = Counter(map(_bare, CATALOG.values()))


def otel_name(instrument: Instrument) -> str:
    """Return the name in OpenTelemetry: dots, and no unit unless two instruments differ by it."""
    bare = _bare(instrument)
    name = bare if _TAKEN[bare] == 1 else instrument.name.removesuffix("_total")
    return f"moriio.{name.replace('_', '.')}"


class ExportFailed(Exception):  # noqa: N818 - it says what has happened
    """The collector has not taken the metrics, as far as is known."""


class _Points:
    """The data points of one export.

    Args:
        reading: What was counted until now.
        sent: What of it has already been sent.
        delta: Whether that is left out.
        start_ns: From when on the points count, nanoseconds since the epoch.
        now_ns: Until when.
    """

    def __init__(
        self, reading: Reading, sent: Reading, *, delta: bool, start_ns: int, now_ns: int
    ) -> None:
        self._reading = reading
        self._exemplars_sent = sent.exemplars
        self._before = sent if delta else _NOTHING
        self._start_ns = start_ns
        self._now_ns = now_ns

    def number(
        self, key: str, instrument: Instrument, attributes: dict[str, str]
    ) -> NumberDataPoint:
        """A counter's or gauge's point."""
        value = self._reading.numbers[key]
        if instrument.kind is Kind.COUNTER:
            value -= self._before.numbers.get(key, 0)
        # A sum of seconds starts as the integer 0; a series is of one type from the start.
        value = float(value) if instrument.unit == "s" else value
        return NumberDataPoint(attributes, self._start_ns, self._now_ns, value)

    def histogram(
        self, key: str, bounds: Sequence[float], attributes: dict[str, str]
    ) -> HistogramDataPoint:
        """A histogram's point in explicit buckets."""
        counts, total = self._reading.histograms[key]
        before, total_before = self._before.histograms.get(key, ([0] * len(counts), 0.0))
        added = [now - then for now, then in zip(counts, before, strict=True)]
        return HistogramDataPoint(
            attributes=attributes,
            start_time_unix_nano=self._start_ns,
            time_unix_nano=self._now_ns,
            count=sum(added),
            sum=total - total_before,
            bucket_counts=added,
            explicit_bounds=bounds,
            min=_NOT_KEPT,
            max=_NOT_KEPT,
            exemplars=self._exemplars(key),
        )

    def exponential(self, key: str, attributes: dict[str, str]) -> ExponentialHistogramDataPoint:
        """A histogram's point in exponential buckets."""
        counted = self._reading.exponentials.get(key, _NONE_COUNTED)
        if (before := self._before.exponentials.get(key)) is not None:
            counted = counted.minus(before)
        return ExponentialHistogramDataPoint(
            attributes=attributes,
            start_time_unix_nano=self._start_ns,
            time_unix_nano=self._now_ns,
            count=counted.count,
            sum=counted.sum,
            scale=counted.scale,
            zero_count=counted.zero_count,
            positive=Buckets(counted.offset, counted.counts),
            negative=Buckets(0, ()),
            flags=0,
            min=_NOT_KEPT,
            max=_NOT_KEPT,
            exemplars=self._exemplars(key),
        )

    def _exemplars(self, key: str) -> list[OTelExemplar]:
        """Those that no collector has yet."""
        sent = self._exemplars_sent.get(key, {})
        return [
            OTelExemplar({}, each.value, _ns(each.at), each.span_id, each.trace_id)
            for bucket, each in self._reading.exemplars.get(key, {}).items()
            if each != sent.get(bucket)
        ]


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


class MetricOutlet:
    """The way out of metrics, for a `Sender`.

    The same series stand at 0 from the start as on a Prometheus page of the same `readings`. A
    failed export loses nothing: the next one covers its time too. One that arrived, but whose
    answer did not, is counted twice where `delta` is set.

    Args:
        readings: What is counted.
        exporter: Makes one when an export comes and there is none.
        resource: Who sends.
        labels: Attributes of every data point: `model_name` and `engine`.
        interval_s: Between two exports, seconds.
        delta: Whether counters and histograms say what was added since the last export, not since
            start.
        exponential: Whether histograms go out in exponential buckets.
        clock: Seconds since the epoch.
    """

    signal = "metrics"

    def __init__(
        self,
        readings: Readings,
        exporter: Callable[[], MetricExporter],
        resource: Resource,
        *,
        labels: Mapping[str, str],
        interval_s: float,
        delta: bool = False,
        exponential: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.interval_s = interval_s
        self._readings = readings
        self._make_exporter = exporter
        self._exporter: MetricExporter | None = None
        self._resource = resource
        self._labels = labels
        self._delta = delta
        self._exponential = exponential
        self._clock = clock
        self._sent = _NOTHING
        self._sent_at = readings.started_at

    def flush(self) -> int:
        """Send every series; nothing is ever lost.

        Raises:
            ExportFailed: They did not arrive, as far as is known.
        """
        if self._exporter is None:
            self._exporter = self._make_exporter()
        at, reading = self._clock(), self._readings.now()
        if self._exporter.export(self._rendered(reading, at)) is not MetricExportResult.SUCCESS:
            raise ExportFailed("not sent; the next export covers this one's time too")
        self._sent, self._sent_at = reading, at
        return 0

    def close(self, timeout_s: float) -> None:
        """Give the connection up within `timeout_s` seconds; the next export makes a new one."""
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            exporter.shutdown(timeout_millis=timeout_s * 1e3)

    def _rendered(self, reading: Reading, at: float) -> MetricsData:
        points = _Points(
            reading,
            self._sent,
            delta=self._delta,
            start_ns=_ns(self._sent_at if self._delta else self._readings.started_at),
            now_ns=_ns(at),
        )
        by_name: dict[str, list[Any]] = defaultdict(list)
        for key in (*reading.numbers, *reading.histograms):
            if (found := self._readings.exposition.find(key)) is None:
                continue
            instrument, labels = found
            shown = {label: labels[label] for label in self._readings.exposition.labels(instrument)}
            by_name[instrument.name].append(
                self._point(points, instrument, key, {**self._labels, **shown})
            )
        metrics = [self._metric(CATALOG[name], found) for name, found in by_name.items()]
        return MetricsData(
            [ResourceMetrics(self._resource, [ScopeMetrics(_SCOPE, metrics, "")], "")]
        )

    def _point(
        self, points: _Points, instrument: Instrument, key: str, attributes: dict[str, str]
    ) -> Any:
        if instrument.kind is not Kind.HISTOGRAM:
            return points.number(key, instrument, attributes)
        if self._exponential:
            return points.exponential(key, attributes)
        return points.histogram(key, self._readings.exposition.bounds(instrument), attributes)

    def _metric(self, instrument: Instrument, points: list[Any]) -> Metric:
        temporality = (
            AggregationTemporality.DELTA if self._delta else AggregationTemporality.CUMULATIVE
        )
        data: Sum | Gauge | Histogram | ExponentialHistogram
        match instrument.kind:
            case Kind.COUNTER:
                data = Sum(points, temporality, is_monotonic=True)
            case Kind.GAUGE:
                data = Gauge(points)
            case Kind.HISTOGRAM if self._exponential:
                data = ExponentialHistogram(points, temporality)
            case Kind.HISTOGRAM:
                data = Histogram(points, temporality)
        return Metric(otel_name(instrument), instrument.help, instrument.unit, data)
