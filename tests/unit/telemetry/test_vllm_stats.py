"""Statistics through the real vLLM to a real exposition."""

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.parser import text_string_to_metric_families
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import (
    MultiConnector,
    MultiKVConnectorPromMetrics,
    MultiKVConnectorStats,
)
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from moriio_observed.config import Exporter, Settings
from moriio_observed.telemetry.aggregate import Aggregate, Payload, empty
from moriio_observed.telemetry.catalog import CATALOG, PREFIX, Kind, Scope, label_sets
from moriio_observed.telemetry.exposition import OF_A_RANK, Exposition
from moriio_observed.telemetry.page import Page
from moriio_observed.telemetry.readings import Readings
from moriio_observed.telemetry.vllm_stats import ObservedPromMetrics, ObservedStats

TYPES = {Gauge: Gauge, Counter: Counter, Histogram: Histogram}
CONFIG = SimpleNamespace(kv_transfer_config=None)
ENGINES = {0: ["m", "0"], 1: ["m", "1"]}
LAYERS = 61


@pytest.fixture(autouse=True)
def _clean_registry() -> Iterator[None]:
    yield
    for collector in list(REGISTRY._collector_to_names):
        if getattr(collector, "_name", "").startswith(PREFIX):
            REGISTRY.unregister(collector)


def build(
    settings: Settings | None = None,
    *,
    types: dict[Any, Any] | None = None,
    layers: int = 4,
    tp_ranks: int = 2,
    engines: dict[int, list[Any]] | None = None,
    static: dict[str, float] | None = None,
) -> ObservedPromMetrics:
    return ObservedPromMetrics(
        CONFIG,
        types or TYPES,
        ["model_name", "engine"],
        engines or ENGINES,
        settings=settings or Settings(),
        layers=layers,
        tp_ranks=tp_ranks,
        static=static or {},
    )


def samples(
    registry: CollectorRegistry = REGISTRY,
) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Everything of ours on /metrics, read by Prometheus's own parser."""
    return {
        (sample.name.removeprefix(PREFIX), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if sample.name.startswith(PREFIX)
    }


def value(name: str, engine: str = "0", **labels: str) -> float | None:
    wanted = {"model_name": "m", "engine": engine, **labels}
    return samples().get((name, frozenset(wanted.items())))


def payload(**counters: float) -> Any:
    return {**empty(), "counters": counters}


def worked(rank: str = "0") -> Aggregate:
    ours = Aggregate(source=f"w{rank}", tp_rank=rank, clock=lambda: 1000.0)
    ours.counter("reads_posted_total").inc(3)
    ours.counter("unprotected_steps_total", cause="full_graph", certainty="certain").inc()
    ours.histogram("barrier_wait_seconds", site="layer").observe(0.003)
    ours.histogram("barrier_wait_seconds", site="layer").observe(500)
    ours.gauge("reads_in_flight").set(2)
    return ours


def delta(rank: str = "0") -> Any:
    return worked(rank).delta()


def through_msgpack(data: Any) -> Any:
    sent = MsgpackEncoder().encode(SchedulerStats(kv_connector_stats=data))
    return MsgpackDecoder(SchedulerStats).decode(sent).kv_connector_stats


# --- the statistics ------------------------------------------------------------------------


def test_fresh_statistics_are_empty_and_say_so() -> None:
    assert ObservedStats().is_empty()
    assert ObservedStats(data={}).is_empty()


def test_an_interval_with_nothing_but_a_failure_is_not_empty() -> None:
    assert not ObservedStats(data=payload(**{"reads_failed_total|other": 1})).is_empty()


def test_aggregate_adds_up_and_leaves_its_argument_alone() -> None:
    one, other = ObservedStats(data=delta("0")), ObservedStats(data=delta("1"))
    before = pickle.dumps(other.data)
    merged = one.aggregate(other)
    assert merged.data["counters"]["reads_posted_total"] == 6
    assert set(merged.data["gauges"]) == {"reads_in_flight|0", "reads_in_flight|1"}
    merged.aggregate(ObservedStats(data=delta("1")))
    assert pickle.dumps(other.data) == before


def test_reset_forgets_everything() -> None:
    stats = ObservedStats(data=delta())
    stats.reset()
    assert stats.is_empty()
    assert stats.to_dict() == empty()


def test_the_log_line_has_totals_over_labels_and_the_mean_wait() -> None:
    stats = ObservedStats(data=delta("0")).aggregate(ObservedStats(data=delta("1")))
    line = stats.reduce()
    assert line["Unprotected steps"] == 2
    assert line["Reads failed"] == 0
    assert line["Avg barrier wait (ms)"] == pytest.approx(500.003e3 / 2)


def test_the_log_line_of_nothing_is_all_zero() -> None:
    assert set(ObservedStats().reduce().values()) == {0}


@pytest.mark.parametrize("carry", [lambda d: pickle.loads(pickle.dumps(d)), through_msgpack])  # noqa: S301
def test_statistics_survive_the_way_to_the_api_server(carry: Any) -> None:
    assert ObservedStats(data=carry(ObservedStats(data=delta()).to_dict())).data == delta()


def test_different_buckets_on_two_ranks_are_counted_not_raised() -> None:
    stats = ObservedStats(data=delta())
    other: Payload = {
        **empty(),
        "counters": {"reads_posted_total": 1},
        "histograms": {"barrier_wait_seconds|layer|0": [[1], 1.0]},
    }
    stats.aggregate(ObservedStats(data=other))
    assert stats.data["counters"]["telemetry_errors_total|metrics"] == 1
    assert stats.data["counters"]["reads_posted_total"] == 3


@pytest.mark.parametrize(
    "garbage", [None, 3, "x", [1], {"counters": 3}, {"counters": {"requests_total": "x"}}]
)
def test_garbage_reaches_neither_the_engine_nor_the_log_line_as_an_error(garbage: Any) -> None:
    stats = ObservedStats(data=garbage).aggregate(ObservedStats(data=delta()))
    stats.reduce()
    assert stats.data["counters"]["telemetry_errors_total|metrics"] >= 1


# --- the exposition ------------------------------------------------------------------------


def test_every_instrument_has_its_help_and_kind_on_metrics() -> None:
    build()
    families = {
        family.name: (family.type, family.documentation)
        for family in text_string_to_metric_families(generate_latest().decode())
    }
    for instrument in CATALOG.values():
        name = PREFIX + instrument.name.removesuffix("_total")
        assert families[name] == (instrument.kind, instrument.help)


def test_every_closed_label_set_starts_at_zero_for_every_engine() -> None:
    build(layers=4, tp_ranks=2)
    found = samples()
    suffix = {Kind.COUNTER: "", Kind.GAUGE: "", Kind.HISTOGRAM: "_count"}
    expected = 0
    for instrument in CATALOG.values():
        if instrument.scope is Scope.START:
            continue
        for values in label_sets(instrument, layers=4, tp_ranks=2):
            for engine in ("0", "1"):
                labels = dict(zip(instrument.labels, values, strict=True))
                key = {"model_name": "m", "engine": engine, **labels}
                name = instrument.name + suffix[instrument.kind]
                assert found[name, frozenset(key.items())] == 0
                expected += 1
    assert expected > 2 * len(CATALOG)


def test_a_gauge_set_once_is_absent_until_somebody_knows_it() -> None:
    build()
    assert value("full_graph_protected") is None


def test_static_gauges_are_set_at_once_for_every_engine() -> None:
    build(static={"transfer_timeout_seconds": 30, "full_graph_protected": 0})
    assert value("transfer_timeout_seconds", engine="1") == 30
    assert value("full_graph_protected") == 0


def test_no_created_series_of_ours_and_everybody_else_keeps_theirs() -> None:
    foreign = Counter("foreign_total", "Not ours.")
    try:
        build()
        text = generate_latest().decode()
        assert f"{PREFIX}reads_posted_created" not in text
        assert not [name for name, _ in samples() if name.endswith("_created")]
        assert "foreign_created" in text
    finally:
        REGISTRY.unregister(foreign)


def test_deltas_add_up_by_engine() -> None:
    metrics = build()
    for _ in range(2):
        metrics.observe(delta(), engine_idx=1)
    assert value("reads_posted_total", engine="1") == 6
    assert value("reads_posted_total", engine="0") == 0
    assert (
        value("unprotected_steps_total", engine="1", cause="full_graph", certainty="certain") == 2
    )


def test_histograms_keep_exact_counts_and_sums() -> None:
    metrics = build()
    for _ in range(2):
        metrics.observe(delta())
    labels = {"site": "layer", "tp_rank": "0"}
    assert value("barrier_wait_seconds_bucket", le="0.0025", **labels) == 0
    assert value("barrier_wait_seconds_bucket", le="0.005", **labels) == 2
    assert value("barrier_wait_seconds_bucket", le="120.0", **labels) == 2
    assert value("barrier_wait_seconds_count", **labels) == 4
    assert value("barrier_wait_seconds_sum", **labels) == pytest.approx(1000.006)


def test_histograms_have_the_bounds_of_the_settings() -> None:
    settings = Settings(wait_buckets=(0.5, 1.0))
    ours = Aggregate(source="w", wait_buckets=settings.wait_buckets)
    ours.histogram("post_seconds").observe(0.7)
    build(settings).observe(ours.delta())
    found = {
        dict(labels)["le"]: n
        for (name, labels), n in samples().items()
        if name == "post_seconds_bucket" and ("engine", "0") in labels
    }
    assert found == {"0.5": 0, "1.0": 1, "+Inf": 1}


def test_without_the_rank_label_ranks_are_one_series() -> None:
    metrics = build(Settings(rank_label=False))
    for rank in ("0", "1"):
        metrics.observe(delta(rank))
    assert value("barrier_wait_seconds_count", site="layer") == 4
    assert value("reads_in_flight") == 4
    assert not [labels for _, labels in samples() if "tp_rank" in dict(labels)]


@pytest.mark.parametrize(
    ("name", "labels", "values", "folded"),
    [
        ("deferred_sends", {}, (2, 5), 7),
        ("hook_installed", {"hook": "x"}, (0, 1), 0),
        ("oldest_read_age_seconds", {"tp_rank": "0"}, (9, 4), 9),
    ],
)
def test_gauges_of_several_sources_fold_as_the_catalogue_says(
    name: str, labels: dict[str, str], values: tuple[float, float], folded: float
) -> None:
    metrics = build()
    for source, reading in zip(("a", "b"), values, strict=True):
        ours = Aggregate(source=source)
        ours.gauge(name, **labels).set(reading)
        metrics.observe(ours.delta())
    assert value(name, **labels) == folded


def test_a_gauge_shows_the_latest_value_of_a_source() -> None:
    metrics = build()
    ours = Aggregate(source="a")
    for reading in (7, 3):
        ours.gauge("deferred_sends").set(reading)
        metrics.observe(ours.delta())
    assert value("deferred_sends") == 3


def test_without_per_layer_the_two_counters_are_absent_and_harmless() -> None:
    metrics = build(Settings(per_layer=False))
    metrics.observe(payload(**{"layer_waits_total|1": 1}))
    assert not [name for name, _ in samples() if name.startswith("layer_wait")]
    assert value("telemetry_errors_total", signal="metrics") == 0


def test_remotes_beyond_the_limit_count_as_other_by_engine() -> None:
    metrics = build(Settings(max_remotes=2))
    for remote in ("a", "b", "c", "d", "a"):
        metrics.observe(payload(**{f"remote_reads_total|{remote}": 1}))
    metrics.observe(payload(**{"remote_reads_total|d": 1}), engine_idx=1)
    assert value("remote_reads_total", remote="a") == 2
    assert value("remote_reads_total", remote="b") == 1
    assert value("remote_reads_total", remote="c") is None
    assert value("remote_reads_total", remote="other") == 2
    assert value("remote_reads_total", engine="1", remote="d") == 1


def test_label_values_may_hold_anything() -> None:
    remote = 'a|b%7C"\n\\'
    ours = Aggregate(source="w")
    ours.counter("remote_reads_total", remote=remote).inc()
    build().observe(ours.delta())
    assert value("remote_reads_total", remote=remote) == 1


@pytest.mark.parametrize("rank_label", [True, False])
def test_series_per_engine_and_rank_stay_within_budget(rank_label: bool) -> None:
    hooks = {f"hook_installed|hook{n}": 1.0 for n in range(16)}
    info = {"config_info|consumer|read|FULL|auto|report|0.32.0|1.2.4|0.1.0": 1.0}
    timeouts = {f"{name}_timeout_seconds": 1.0 for name in ("transfer", "recv_abort", "defer")} | {
        "full_graph_protected": 1.0
    }
    metrics = build(
        Settings(rank_label=rank_label),
        layers=LAYERS,
        tp_ranks=1,
        engines={0: ["m", "0"]},
        static={**hooks, **info, **timeouts},
    )
    for name in (name for name, found in CATALOG.items() if found.labels == ("remote",)):
        for remote in range(40):
            metrics.observe(payload(**{f"{name}|{remote}": 1}))
    assert len(samples()) <= 400 + 2 * LAYERS


# --- the shapes in which it arrives --------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [
        lambda d: d,
        through_msgpack,
        lambda d: {"data": d},
        lambda d: ObservedStats(data=d),
        lambda d: through_msgpack({"ours": ObservedStats(data=d)})["ours"],
    ],
    ids=["payload", "msgpack", "data", "object", "object through msgpack"],
)
def test_every_shape_vllm_passes_is_understood_by_both_twins(shape: Any) -> None:
    build().observe(shape(delta()))
    assert value("reads_posted_total") == 3
    assert ObservedStats(data=shape(delta())).reduce()["Unprotected steps"] == 1


def test_the_way_through_multi_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ours:
        @staticmethod
        def build_kv_connector_stats(data: Any = None) -> KVConnectorStats:
            return ObservedStats(data=data)

    monkeypatch.setattr(KVConnectorFactory, "get_connector_class_by_name", lambda name: Ours)
    worker = MultiKVConnectorStats(data={"Ours": ObservedStats(data=delta("0"))})
    worker.aggregate(MultiKVConnectorStats(data={"Ours": ObservedStats(data=delta("1"))}))
    # Up to 0.29 vLLM sends `data`, from 0.30 what `to_dict` returns.
    arrived = through_msgpack(worker.to_dict() if hasattr(worker, "to_dict") else worker.data)
    rebuilt = MultiConnector.build_kv_connector_stats(arrived)
    assert rebuilt is not None
    assert rebuilt.reduce()["Ours"]["Unprotected steps"] == 2
    metrics = MultiKVConnectorPromMetrics(
        CONFIG, TYPES, ["model_name", "engine"], ENGINES, {"Ours": build()}
    )
    metrics.observe(arrived, 0)
    assert value("reads_posted_total") == 6


# --- what goes wrong -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [
        None,
        "x",
        {"counters": 3},
        {"counters": {"no_such_total": 1}},
        {"counters": {"reads_posted_total|x": 1}},
        {"counters": {"reads_posted_total": "x"}},
        {"counters": {"reads_posted_total": -1}},
        {"counters": {"barrier_timeouts_total|nowhere": 1}},
        {"histograms": {"post_seconds": [[1, 2], 3.0]}},
        {"histograms": {"post_seconds": 3}},
        {"gauges": {"deferred_sends": 3}},
    ],
)
def test_garbage_is_counted_logged_once_and_never_raised(
    garbage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = build()
    with caplog.at_level(logging.WARNING, logger="vllm.moriio_observed"):
        metrics.observe(garbage)
        metrics.observe(garbage)
    assert value("telemetry_errors_total", signal="metrics") == 2
    assert len(caplog.records) == 1


def test_one_bad_entry_does_not_lose_the_others() -> None:
    build().observe(payload(no_such_total=1, reads_posted_total=5))
    assert value("reads_posted_total") == 5


def test_a_histogram_with_other_buckets_is_not_taken_over_in_part() -> None:
    build().observe({**empty(), "histograms": {"post_seconds": [[1, 2], 3.0]}})
    assert value("post_seconds_count") == 0


def test_an_engine_nobody_announced_raises_nothing() -> None:
    build().observe(delta(), engine_idx=7)
    assert value("reads_posted_total") == 0


# --- built again ---------------------------------------------------------------------------


def test_built_twice_nothing_is_lost_and_nothing_counts_twice() -> None:
    build().observe(delta())
    again = build()
    assert value("reads_posted_total") == 3
    assert value("reads_in_flight", tp_rank="0") == 2
    again.observe(delta())
    assert value("reads_posted_total") == 6
    assert value("barrier_wait_seconds_count", site="layer", tp_rank="0") == 4
    assert not [name for name, _ in samples() if name.endswith("_created")]


def test_built_again_the_same_keeps_its_collectors() -> None:
    build()
    before = dict(REGISTRY._names_to_collectors)
    build(Settings(exporter=Exporter(enabled=True)))
    assert dict(REGISTRY._names_to_collectors) == before


def test_built_again_with_other_settings_the_new_ones_hold() -> None:
    build()
    build(Settings(rank_label=False, wait_buckets=(1.0,))).observe(payload(reads_posted_total=1))
    assert value("reads_posted_total") == 1
    assert value("step_blocked_seconds_bucket", le="1.0") == 0
    assert value("step_blocked_seconds_bucket", le="0.5") is None


# --- a rank's own page ---------------------------------------------------------------------


@pytest.mark.parametrize("settings", [Settings(), Settings(rank_label=False, per_layer=False)])
def test_the_page_of_a_ranks_own_endpoint_shows_the_same_series_and_values(
    settings: Settings,
) -> None:
    static = {"transfer_timeout_seconds": 30.0, "config_info|a|b|c|d|e|f|g|h": 1.0}
    ours = worked()
    ours.histogram("post_seconds").observe(0.0007)
    ours.counter("remote_reads_total", remote="P 1").inc(4)
    ours.counter("layer_wait_seconds_total", layer="3").inc(0.25)
    build(settings, tp_ranks=1, engines={0: ["m", "0"]}, static=static).observe(ours.delta())
    registry = CollectorRegistry()
    readings = Readings(
        [ours], Exposition(settings), static=static, scopes=OF_A_RANK, layers=4, tp_ranks=[0]
    )
    registry.register(Page(readings, {"model_name": "m", "engine": "0"}))
    elsewhere = {each.name for each in CATALOG.values()} - {
        each.name for each in CATALOG.values() if each.scope in (*OF_A_RANK, Scope.START)
    }
    expected = {key: number for key, number in samples().items() if key[0] not in elsewhere}
    assert samples(registry) == expected


# --- other classes and several processes ---------------------------------------------------


class Wrapper:
    """Like vLLM's wrappers for Ray: only the public methods, no registry, no buckets inside."""

    made: ClassVar[dict[str, list[tuple[tuple[object, ...], float]]]]

    def __init__(self, name: str, documentation: str, labelnames: list[str], **_: Any) -> None:
        self.name = name
        self.values: tuple[object, ...] = ()

    def labels(self, *values: object) -> "Wrapper":
        child = type(self)(self.name, "", [])
        child.values = values
        return child

    def record(self, value: float = 1) -> None:
        self.made.setdefault(self.name, []).append((self.values, value))

    inc = set = observe = record


def test_classes_with_only_public_methods_get_every_observation_in_its_bucket() -> None:
    class Recording(Wrapper):
        made: ClassVar = {}

    build(types=dict.fromkeys(TYPES, Recording)).observe(delta())
    (first, low), (second, high) = Recording.made["moriio_barrier_wait_seconds"]
    assert first == second == ("m", "0", "layer", "0")
    assert 0.0025 < low <= 0.005
    assert high > 120
    assert Recording.made["moriio_reads_posted_total"] == [(("m", "0"), 3)]
    assert Recording.made["moriio_reads_in_flight"] == [(("m", "0", "0"), 2)]


def test_the_classes_given_are_the_classes_used() -> None:
    class OurCounter(Counter):
        pass

    build(types={**TYPES, Counter: OurCounter})
    assert type(REGISTRY._names_to_collectors["moriio_reads_posted_total"]) is OurCounter


# Two processes for the price of one import of vLLM.
API_SERVERS = """
import os, sys
from prometheus_client import CollectorRegistry, generate_latest, multiprocess
sys.path[:0] = [sys.argv[1]]
import test_vllm_stats as t
another = os.fork()
t.build().observe(t.delta())
if not another:
    os._exit(0)
assert os.waitpid(another, 0)[1] == 0
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_several_api_servers_add_up_on_one_page(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", API_SERVERS, Path(__file__).parent],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    own = 'engine="0",model_name="m"'
    assert f"moriio_reads_posted_total{{{own}}} 6.0" in lines
    assert f'moriio_barrier_wait_seconds_count{{{own},site="layer",tp_rank="0"}} 4.0' in lines
    assert f'moriio_reads_in_flight{{{own},tp_rank="0"}} 2.0' in lines
    assert not [line for line in lines if line.startswith("moriio_") and "_created" in line]
