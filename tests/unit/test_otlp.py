"""Metrics over OTLP say what the counts say, under the names of vLLM's /metrics."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.metrics.v1 import metrics_pb2 as pb
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.resources import Resource

from moriio_observed.config import Settings
from moriio_observed.telemetry.aggregate import Aggregate, make_key
from moriio_observed.telemetry.catalog import CATALOG, PREFIX, Instrument, Kind
from moriio_observed.telemetry.exposition import MEASURED, Exposition
from moriio_observed.telemetry.otlp import ExportFailed, MetricOutlet, otel_name
from moriio_observed.telemetry.readings import Readings

LABELS = {"model_name": "m", "engine": "0"}
UNITS = {"s": "seconds", "By": "bytes", "": ""}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Collector(MetricExporter):
    """Takes what it gets, as it would arrive, or refuses it."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = False
        self.got: list[pb.ResourceMetrics] = []
        self.closed_within_ms: float | None = None

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 0, **kwargs: Any
    ) -> MetricExportResult:
        if self.refuses:
            return MetricExportResult.FAILURE
        self.got += encode_metrics(metrics_data).resource_metrics
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 0, **kwargs: Any) -> None:
        self.closed_within_ms = timeout_millis

    @property
    def metrics(self) -> dict[str, pb.Metric]:
        return {metric.name: metric for metric in self.got[-1].scope_metrics[0].metrics}


class Scene:
    """An aggregate, its outlet, and the collector it goes to."""

    def __init__(
        self,
        *more: Aggregate,
        settings: Settings | None = None,
        static: Mapping[str, float] | None = None,
        zeros: bool = False,
        **options: bool,
    ) -> None:
        self.clock = Clock()
        self.collector = Collector()
        self.counts = Aggregate(
            source="w0",
            exponential=options.get("exponential", False),
            clock=self.clock,
        )
        readings = Readings(
            [self.counts, *more],
            Exposition(settings or Settings()),
            static=static or {},
            scopes=MEASURED if zeros else (),
            layers=2,
            tp_ranks=[0],
        )
        self.outlet = MetricOutlet(
            readings,
            lambda: self.collector,
            Resource({"service.name": "vllm"}),
            labels=LABELS,
            interval_s=60,
            clock=self.clock,
            **options,
        )

    def flush(self) -> dict[str, pb.Metric]:
        self.clock.now += 60
        assert self.outlet.flush() == 0
        return self.collector.metrics


def in_prometheus(metric: pb.Metric) -> str:
    """The name that a translation to Prometheus gives a metric.

    As its specification says: what a name may not hold becomes `_`, the unit is added unless it is
    there already, then `_total` to a sum that only grows. (A gauge of unit "1" would get `_ratio`;
    there is none.)
    """
    words = [word for word in re.split(r"[^a-zA-Z0-9]", metric.name) if word]
    unit = UNITS[metric.unit]
    if unit and unit not in words:
        words.append(unit)
    if metric.HasField("sum") and metric.sum.is_monotonic:
        words = [word for word in words if word != "total"] + ["total"]
    return "_".join(words)


def points_of(metric: pb.Metric) -> list[Any]:
    kind = metric.WhichOneof("data")
    assert kind is not None
    return list(getattr(metric, kind).data_points)


def labels_of(point: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in point.attributes}


def key_of(instrument: Instrument, point: Any) -> str:
    labels = labels_of(point)
    assert {name: labels.pop(name) for name in LABELS} == LABELS
    return make_key(instrument.name, [labels.pop(label) for label in instrument.labels])


def number_of(point: pb.NumberDataPoint) -> float:
    return point.as_int if point.WhichOneof("value") == "as_int" else point.as_double


def count_everything(ours: Aggregate) -> None:
    """Every instrument of the catalogue, each with another value."""
    for n, instrument in enumerate(CATALOG.values(), start=1):
        labels = {
            label: instrument.closed.get(label, ("0",))[-1]
            for label in instrument.labels
            if label != "tp_rank"
        }
        match instrument.kind:
            case Kind.COUNTER:
                ours.counter(instrument.name, **labels).inc(n)
            case Kind.GAUGE:
                ours.gauge(instrument.name, **labels).set(n)
            case Kind.HISTOGRAM:
                for value in (0, n / 1000, n, n * 1e6):
                    ours.histogram(instrument.name, **labels).observe(value)


# Names and values, over the whole catalogue.


@pytest.mark.parametrize("options", [{}, {"delta": True}, {"exponential": True}])
def test_every_name_translated_to_prometheus_is_the_catalogues(options: dict[str, bool]) -> None:
    scene = Scene(**options)
    count_everything(scene.counts)
    got = scene.flush()
    assert {in_prometheus(metric) for metric in got.values()} == {PREFIX + name for name in CATALOG}
    by_name = {PREFIX + name: instrument for name, instrument in CATALOG.items()}
    for metric in got.values():
        assert metric.description == by_name[in_prometheus(metric)].help


def test_a_name_is_dotted_and_without_its_unit() -> None:
    assert otel_name(CATALOG["barrier_wait_seconds"]) == "moriio.barrier.wait"
    assert otel_name(CATALOG["layer_wait_seconds_total"]) == "moriio.layer.wait"
    assert otel_name(CATALOG["steps_total"]) == "moriio.steps"


def test_names_that_differ_by_their_unit_alone_keep_it() -> None:
    assert otel_name(CATALOG["request_read_bytes"]) == "moriio.request.read.bytes"
    assert otel_name(CATALOG["request_read_seconds"]) == "moriio.request.read.seconds"
    names = [otel_name(instrument) for instrument in CATALOG.values()]
    assert len(names) == len(set(names))


def test_every_value_is_the_aggregates() -> None:
    scene = Scene()
    count_everything(scene.counts)
    got = scene.flush()
    whole = scene.counts.cumulative()
    gauges = {
        key: value for key, sources in whole["gauges"].items() for _, value in sources.values()
    }
    seen: dict[str, Any] = {}
    for name, instrument in CATALOG.items():
        for point in points_of(got[otel_name(instrument)]):
            key = key_of(instrument, point)
            if instrument.kind is not Kind.HISTOGRAM:
                seen[key] = number_of(point)
                continue
            seen[key] = [list(point.bucket_counts), point.sum]
            assert point.count == sum(point.bucket_counts) == 4
            assert tuple(point.explicit_bounds) == Exposition(Settings()).bounds(CATALOG[name])
    assert seen == {**whole["counters"], **whole["histograms"], **gauges}


def test_kinds_are_sum_gauge_and_histogram() -> None:
    scene = Scene()
    count_everything(scene.counts)
    got = scene.flush()
    fields = {Kind.COUNTER: "sum", Kind.GAUGE: "gauge", Kind.HISTOGRAM: "histogram"}
    for instrument in CATALOG.values():
        assert got[otel_name(instrument)].WhichOneof("data") == fields[instrument.kind]


def test_exponential_buckets_hold_the_same_observations() -> None:
    scene = Scene(exponential=True)
    count_everything(scene.counts)
    got = scene.flush()
    found = scene.counts.exponentials()
    assert found
    for key, expected in found.items():
        instrument = CATALOG[key.partition("|")[0]]
        (point,) = points_of(got[otel_name(instrument)])
        assert (point.scale, point.zero_count, point.sum) == (
            expected.scale,
            expected.zero_count,
            expected.sum,
        )
        assert tuple(point.positive.bucket_counts) == expected.counts
        assert point.positive.offset == expected.offset
        assert point.count == 4


# What stands there, and as whose.


def test_what_is_known_beforehand_stands_at_0_and_what_is_set_once_is_absent() -> None:
    got = Scene(zeros=True).flush()
    assert {in_prometheus(metric).removeprefix(PREFIX) for metric in got.values()} == {
        name
        for name, instrument in CATALOG.items()
        if instrument.scope in MEASURED and not instrument.is_open
    }
    assert len(points_of(got["moriio.layer.waits"])) == 2
    assert all(number_of(point) == 0 for point in points_of(got["moriio.steps"]))
    (post,) = points_of(got["moriio.post"])
    assert (post.count, len(post.bucket_counts)) == (0, len(post.explicit_bounds) + 1)


def test_exponential_histograms_stand_at_0_too() -> None:
    (post,) = points_of(Scene(zeros=True, exponential=True).flush()["moriio.post"])
    assert (post.count, post.zero_count) == (0, 0)


def test_gauges_known_at_start_are_sent_until_an_aggregate_knows_better() -> None:
    scene = Scene(static={"hook_installed|x": 1, "transfer_timeout_seconds": 30})
    scene.counts.gauge("hook_installed", hook="x").set(0)
    got = scene.flush()
    assert [number_of(point) for point in points_of(got["moriio.hook.installed"])] == [0]
    assert [number_of(point) for point in points_of(got["moriio.transfer.timeout"])] == [30]


def test_several_aggregates_of_a_process_are_one_sender() -> None:
    scheduler = Aggregate(source="scheduler", exponential=True, clock=Clock())
    scene = Scene(scheduler, exponential=True)
    for ours, value in ((scene.counts, 1.0), (scheduler, 2.0)):
        ours.counter("telemetry_errors_total", signal="traces").inc(value)
        ours.gauge("hook_installed", hook="x").set(value)
        ours.gauge("deferred_sends").set(value)
        ours.histogram("post_seconds").observe(value)
    got = scene.flush()
    shown = {
        name: number_of(points_of(got[name])[0])
        for name in ("moriio.telemetry.errors", "moriio.hook.installed", "moriio.deferred.sends")
    }
    assert list(shown.values()) == [3, 1, 3]
    assert points_of(got["moriio.post"])[0].count == 2


def test_series_the_settings_leave_out_are_not_sent_either() -> None:
    scene = Scene(settings=Settings(per_layer=False, rank_label=False))
    scene.counts.counter("layer_waits_total", layer="0").inc()
    scene.counts.gauge("reads_in_flight").set(1)
    got = scene.flush()
    assert list(got) == ["moriio.reads.in.flight"]
    assert labels_of(points_of(got["moriio.reads.in.flight"])[0]) == LABELS


def test_they_are_sent_as_the_resources_and_by_our_scope() -> None:
    scene = Scene()
    scene.counts.counter("requests_total").inc()
    scene.flush()
    sent = scene.collector.got[-1]
    assert [each.value.string_value for each in sent.resource.attributes] == ["vllm"]
    assert sent.scope_metrics[0].scope.name == "moriio_observed"


def test_seconds_are_never_integers_and_counts_always_are() -> None:
    scene = Scene(zeros=True)
    got = scene.flush()
    assert points_of(got["moriio.layer.wait"])[0].WhichOneof("value") == "as_double"
    assert points_of(got["moriio.steps"])[0].WhichOneof("value") == "as_int"


# Cumulative and delta, and what a failed export costs.


def sums(metric: pb.Metric) -> list[float]:
    return [getattr(point, "sum", None) or number_of(point) for point in points_of(metric)]


def times(point: Any) -> tuple[float, float]:
    return point.start_time_unix_nano / 1e9, point.time_unix_nano / 1e9


def test_cumulative_points_count_from_when_the_aggregate_was_made() -> None:
    scene = Scene()
    scene.counts.counter("requests_total").inc(2)
    assert number_of(points_of(scene.flush()["moriio.requests"])[0]) == 2
    scene.counts.counter("requests_total").inc(3)
    metric = scene.flush()["moriio.requests"]
    assert metric.sum.aggregation_temporality == pb.AGGREGATION_TEMPORALITY_CUMULATIVE
    (point,) = metric.sum.data_points
    assert (number_of(point), times(point)) == (5, (1000.0, 1120.0))


def observe(scene: Scene, *values: float) -> None:
    scene.counts.counter("requests_total").inc(len(values))
    for value in values:
        scene.counts.histogram("post_seconds").observe(value)


@pytest.mark.parametrize("exponential", [False, True])
def test_delta_points_count_from_the_last_export(exponential: bool) -> None:
    scene = Scene(delta=True, exponential=exponential)
    observe(scene, 1.0, 0.0)
    scene.flush()
    observe(scene, 4.0)
    got = scene.flush()
    post, requests = got["moriio.post"], got["moriio.requests"]
    for data in (getattr(post, post.WhichOneof("data") or ""), requests.sum):
        assert data.aggregation_temporality == pb.AGGREGATION_TEMPORALITY_DELTA
        assert times(data.data_points[0]) == (1060.0, 1120.0)
    assert (points_of(post)[0].count, points_of(post)[0].sum) == (1, 4.0)
    assert number_of(points_of(requests)[0]) == 1


@pytest.mark.parametrize("exponential", [False, True])
def test_what_a_failed_export_did_not_deliver_is_in_the_next_delta(exponential: bool) -> None:
    scene = Scene(delta=True, exponential=exponential)
    observe(scene, 1.0)
    scene.flush()
    scene.collector.refuses = True
    observe(scene, 2.0)
    with pytest.raises(ExportFailed):
        scene.flush()
    scene.collector.refuses = False
    observe(scene, 4.0)
    got = scene.flush()
    post = points_of(got["moriio.post"])[0]
    assert (post.count, post.sum) == (2, 6.0)
    assert times(post) == (1060.0, 1180.0)
    assert number_of(points_of(got["moriio.requests"])[0]) == 2


def test_a_gauge_is_its_value_whatever_the_temporality() -> None:
    scene = Scene(delta=True)
    scene.counts.gauge("deferred_sends").set(7)
    scene.flush()
    assert number_of(points_of(scene.flush()["moriio.deferred.sends"])[0]) == 7


# Exemplars.


@pytest.mark.parametrize("exponential", [False, True])
def test_an_exemplar_carries_value_time_and_span(exponential: bool) -> None:
    scene = Scene(exponential=exponential)
    scene.counts.histogram("post_seconds").observe(0.25)
    scene.counts.histogram("post_seconds").exemplify(0.25, 1001.5, 0xABC << 100, 0xDEF)
    (point,) = points_of(scene.flush()["moriio.post"])
    (exemplar,) = point.exemplars
    assert (exemplar.as_double, exemplar.time_unix_nano) == (0.25, 1_001_500_000_000)
    assert int.from_bytes(exemplar.trace_id) == 0xABC << 100
    assert int.from_bytes(exemplar.span_id) == 0xDEF


def exemplars(scene: Scene) -> list[float]:
    (point,) = points_of(scene.flush()["moriio.post"])
    return [exemplar.as_double for exemplar in point.exemplars]


def test_an_exemplar_is_sent_until_an_export_has_delivered_it() -> None:
    scene = Scene()
    post = scene.counts.histogram("post_seconds")
    post.exemplify(0.25, 1001.0, 1, 2)
    scene.collector.refuses = True
    with pytest.raises(ExportFailed):
        scene.flush()
    scene.collector.refuses = False
    scene.counts.histogram("post_seconds").observe(0.25)
    assert exemplars(scene) == [0.25]
    assert exemplars(scene) == []
    post.exemplify(0.2, 1002.0, 3, 4)
    assert exemplars(scene) == [0.2]


def test_of_several_aggregates_the_latest_exemplar_of_a_bucket_is_sent() -> None:
    other = Aggregate(source="other", clock=Clock())
    scene = Scene(other)
    for ours, at in ((other, 2.0), (scene.counts, 1.0)):
        ours.histogram("post_seconds").observe(0.25)
        ours.histogram("post_seconds").exemplify(at / 8, at, 1, 2)
    assert exemplars(scene) == [0.25]


# The connection.


def test_the_exporter_is_made_at_the_first_export_and_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Collector] = []

    def make() -> MetricExporter:
        made.append(Collector())
        return made[-1]

    scene = Scene()
    monkeypatch.setattr(scene.outlet, "_make_exporter", make)
    scene.outlet.close(1)
    assert not made
    scene.outlet.flush()
    scene.outlet.flush()
    assert len(made) == 1


def test_closing_gives_the_exporter_its_time() -> None:
    scene = Scene()
    scene.flush()
    scene.outlet.close(1.5)
    assert scene.collector.closed_within_ms == 1500
