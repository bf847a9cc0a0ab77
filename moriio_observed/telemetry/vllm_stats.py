"""vLLM's own way out: the statistics that travel with a step, and their Prometheus twin.

Workers and scheduler send payloads of `aggregate.py`. vLLM merges them over ranks, carries them
to the API server and hands them to its log line and to Prometheus there. Whatever is wrong with a
payload is swallowed and counted here: it must never reach serving.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from prometheus_client import REGISTRY
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from moriio_observed.log import get_logger
from moriio_observed.telemetry.aggregate import Payload, empty, make_key, merge, split_key
from moriio_observed.telemetry.catalog import OTHER, PREFIX, Instrument, Kind
from moriio_observed.telemetry.exposition import MEASURED, Exposition, folded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from prometheus_client import Metric
    from vllm.config import VllmConfig

    from moriio_observed.config import Settings

logger = get_logger(__name__)

_ERRORS = make_key("telemetry_errors_total", ["metrics"])
_LOG_LINE = {
    "Requests read": "requests_total",
    "Reads landed": "reads_landed_total",
    "Reads failed": "reads_failed_total",
    "Reads aborted": "reads_aborted_total",
    "Barrier timeouts": "barrier_timeouts_total",
    "Unprotected steps": "unprotected_steps_total",
    "Exposed requests": "exposed_requests_total",
    "Phantom hits": "phantom_hits_total",
    "Releases": "releases_total",
}


def payload_of(data: Any) -> Payload:
    """Return the payload in any of the shapes in which vLLM passes statistics.

    Up to 0.29 MultiConnector sends its children's statistics objects themselves, which arrive as
    such or, after msgpack, as a dict with the single key `data`.

    Raises:
        TypeError: It is none of them.
    """
    if isinstance(data, KVConnectorStats):
        data = data.data
    if isinstance(data, Mapping) and "data" in data:
        data = data["data"]
    if not isinstance(data, Mapping):
        raise TypeError(f"statistics are a mapping, not {type(data).__name__}")
    sections = {name: data.get(name, {}) for name in Payload.__annotations__}
    if not all(isinstance(section, Mapping) for section in sections.values()):
        raise TypeError("every section of the statistics is a mapping")
    return cast("Payload", sections)


@dataclass
class ObservedStats(KVConnectorStats):
    """The statistics of one interval; `data` is a payload and nothing else."""

    data: Payload = field(default_factory=empty)

    def __post_init__(self) -> None:
        try:
            self.data = payload_of(self.data)
        except TypeError:
            self._lose()

    def to_dict(self) -> dict[str, Any]:
        """Return the payload (the base has no such method up to vLLM 0.29)."""
        return cast("dict[str, Any]", self.data)

    def reset(self) -> None:
        """Forget everything."""
        self.data = empty()

    def aggregate(self, other: KVConnectorStats) -> ObservedStats:
        """Add another interval or rank to this one and return this one."""
        try:
            self.data = merge(self.data, payload_of(other))
        except Exception:  # noqa: BLE001 - the engine would die of it
            self._lose()
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return a handful of values for vLLM's log line, summed over ranks."""
        try:
            line = {title: _total(self.data, name) for title, name in _LOG_LINE.items()}
            return {**line, "Avg barrier wait (ms)": _mean_wait_ms(self.data)}
        except Exception:  # noqa: BLE001 - the API server would die of it
            self._lose()
            return {}

    def is_empty(self) -> bool:
        """Return whether there is nothing to say; a failure alone is something."""
        return not any(self.data.values())

    def _lose(self) -> None:
        self.data = _count_error(self.data)


def _count_error(data: Any) -> Payload:
    """Return what is still good of a payload, with one error counted."""
    one: Payload = {**empty(), "counters": {_ERRORS: 1}}
    try:
        return merge(payload_of(data), one)
    except Exception:  # noqa: BLE001 - then nothing of it is good
        return one


def _total(payload: Payload, name: str) -> float:
    return sum(n for key, n in payload["counters"].items() if split_key(key)[0] == name)


def _mean_wait_ms(payload: Payload) -> float:
    waits = [
        (sum(counts), total)
        for key, (counts, total) in payload["histograms"].items()
        if split_key(key)[0] == "barrier_wait_seconds"
    ]
    calls = sum(count for count, _ in waits)
    return round(1e3 * sum(total for _, total in waits) / calls, 3) if calls else 0.0


@dataclass(slots=True)
class _Series:
    """One child of a Prometheus collector, and how our values get into it."""

    child: Any
    instrument: Instrument
    bounds: Sequence[float]
    readings: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def apply(self, key: str, change: Any) -> None:
        """Take over one entry of a payload."""
        match self.instrument.kind:
            case Kind.COUNTER:
                self.child.inc(change)
            case Kind.HISTOGRAM:
                self._observe(key, *change)
            case Kind.GAUGE:
                self._set(key, change)

    def _set(self, key: str, sources: Mapping[str, list[float]]) -> None:
        for source, reading in sources.items():
            known = self.readings.get((source, key), reading)
            self.readings[source, key] = max(known, reading)
        values = [value for _, value in self.readings.values()]
        self.child.set(folded(self.instrument.fold, values))

    def _observe(self, key: str, counts: Sequence[int], total: float) -> None:
        """Add counted observations.

        prometheus_client, in multiprocess mode too, keeps one value per bucket, to which a count
        is added at once and exactly. Its public way, one `observe()` per observation, would cost a
        loop over the buckets for each and could not keep the sum. Classes without these values
        (vLLM's wrappers for Ray) take that way, each observation as its bucket's upper bound: their
        buckets and count are right, their sum is too high by up to a bucket's width for each, and
        too low for those above the last bound.
        """
        if len(counts) != len(self.bounds) + 1:
            raise ValueError(f"{key} has {len(counts)} buckets, not {len(self.bounds) + 1}")
        buckets = getattr(self.child, "_buckets", None)
        if buckets is None:
            above = math.nextafter(self.bounds[-1], math.inf)
            for bound, count in zip((*self.bounds, above), counts, strict=True):
                for _ in range(count):
                    self.child.observe(bound)
            return
        for bucket, count in zip(buckets, counts, strict=True):
            if count:
                bucket.inc(count)
        self.child._sum.inc(total)


class ObservedPromMetrics(KVConnectorPromMetrics):
    """The catalogue as Prometheus collectors in the API server.

    With several API servers a step's statistics reach one of them only. Counters and histograms
    still add up; a gauge shows what the server that heard of it last knows.

    Args:
        vllm_config: vLLM's configuration.
        metric_types: The classes to use by the prometheus_client class they stand for.
        labelnames: vLLM's own labels.
        per_engine_labelvalues: Their values by engine index.
        settings: What the user set.
        layers: How many layers the model has.
        tp_ranks: How many TP ranks an engine has.
        static: Gauges known beforehand, by payload key, set at once for every engine.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
        *,
        settings: Settings,
        layers: int,
        tp_ranks: int,
        static: Mapping[str, float],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._max_remotes = settings.max_remotes
        self._exposition = Exposition(settings)
        self._collectors = {
            name: self._collector(instrument)
            for name, instrument in self._exposition.instruments.items()
        }
        self._by_key: dict[tuple[int, str], _Series | None] = {}
        self._by_labels: dict[tuple[int, str, tuple[str, ...]], _Series] = {}
        self._remotes: dict[int, set[str]] = {engine: set() for engine in per_engine_labelvalues}
        self._complained = False
        for engine in per_engine_labelvalues:
            # A child starts at 0.
            for key in self._exposition.zero_keys(
                MEASURED, layers=layers, tp_ranks=range(tp_ranks)
            ):
                self._series(engine, key)
            for key, value in static.items():
                if (series := self._series(engine, key)) is not None:
                    series.child.set(value)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add what changed. Never raises: what is malformed is skipped, counted and logged once.

        Args:
            transfer_stats_data: A payload, in any shape `payload_of` knows.
            engine_idx: Whose it is.
        """
        try:
            sections = payload_of(transfer_stats_data)
        except TypeError:
            self._complain(engine_idx)
            return
        for section in (sections["counters"], sections["histograms"], sections["gauges"]):
            for key, change in section.items():
                try:
                    if (series := self._series(engine_idx, key)) is not None:
                        series.apply(key, change)
                except Exception:  # noqa: BLE001 - the API server would die of it
                    self._complain(engine_idx)

    def _complain(self, engine: int) -> None:
        if not self._complained:
            self._complained = True
            logger.warning("Malformed statistics; counted from now on")
        if (series := self._by_key.get((engine, _ERRORS))) is not None:
            series.child.inc()

    def _series(self, engine: int, key: str) -> _Series | None:
        """Return where an entry goes, None where the settings leave its instrument out."""
        try:
            return self._by_key[engine, key]
        except KeyError:
            series = self._by_key[engine, key] = self._find(engine, key)
        return series

    def _find(self, engine: int, key: str) -> _Series | None:
        if (found := self._exposition.find(key)) is None:
            return None
        instrument, labels = found
        name = instrument.name
        if "remote" in labels and not self._is_known_remote(engine, labels["remote"]):
            labels["remote"] = OTHER
        shown = tuple(labels[label] for label in self._exposition.labels(instrument))
        series = self._by_labels.get((engine, name, shown))
        if series is None:
            child = self._collectors[name].labels(*self.per_engine_labelvalues[engine], *shown)
            series = _Series(child, instrument, self._exposition.bounds(instrument))
            self._by_labels[engine, name, shown] = series
        return series

    def _is_known_remote(self, engine: int, remote: str) -> bool:
        known = self._remotes[engine]
        if len(known) < self._max_remotes:
            known.add(remote)
        return remote in known

    def _collector(self, instrument: Instrument) -> Any:
        """Return the collector of an instrument.

        vLLM builds its loggers anew within a process and unregisters only its own collectors
        before. Ours is then still there: the same one is taken over with all it counted, one of
        another shape (other settings) makes room.
        """
        cls, options = self._class_and_options(instrument)
        name = PREFIX + instrument.name
        labelnames = (*self._labelnames, *self._exposition.labels(instrument))
        known: Any = REGISTRY._names_to_collectors.get(name)
        if known is not None:
            if (
                type(known) is cls
                and (known._documentation, known._labelnames) == (instrument.help, labelnames)
                and known._kwargs == options
            ):
                return known
            REGISTRY.unregister(known)
        collector = cls(
            name=name, documentation=instrument.help, labelnames=list(labelnames), **options
        )
        _drop_created(collector)
        return collector

    def _class_and_options(self, instrument: Instrument) -> tuple[Any, dict[str, Any]]:
        match instrument.kind:
            case Kind.COUNTER:
                return self._counter_cls, {}
            case Kind.HISTOGRAM:
                return self._histogram_cls, {"buckets": list(self._exposition.bounds(instrument))}
            case Kind.GAUGE:
                return self._gauge_cls, {"multiprocess_mode": "mostrecent"}


def _drop_created(collector: Any) -> None:
    """Keep a collector from exposing `_created` series.

    They would nearly double the counters. prometheus_client can only turn them off for the whole
    process, vLLM's own metrics included, which are not ours to change; so this one collector's
    answer is filtered. Multiprocess mode has none, and Ray's wrappers are not collected.
    """
    if not hasattr(collector, "collect"):
        return
    collect = collector.collect

    def without_created() -> Iterable[Metric]:
        for metric in collect():
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric

    collector.collect = without_created
