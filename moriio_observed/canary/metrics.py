"""Every instrument of the canary once, and the numbers behind it.

Attributes:
    PREFIX: What stands before every name.
    COMMON: Labels that every series carries.
    CATALOG: Every instrument by its name without the prefix.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.registry import Collector

from moriio_observed.telemetry.catalog import Kind

PREFIX = "moriio_canary_"
COMMON: tuple[str, ...] = ("model_name", "target")

POSITION_BUCKETS: tuple[float, ...] = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
LOGPROB_BUCKETS: tuple[float, ...] = (0, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10)
PROBE_BUCKETS: tuple[float, ...] = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
ROUND_BUCKETS: tuple[float, ...] = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Result(StrEnum):
    """What became of one probe."""

    MATCH = "match"
    SOUND = "sound"
    SWAPPED = "swapped"
    DIVERGED = "diverged"
    DEGENERATE = "degenerate"
    OUTDATED = "outdated"
    ERROR = "error"
    BUSY = "busy"


class RoundResult(StrEnum):
    """What one round amounts to. Of several the first in this order."""

    WRONG = "wrong"
    OUTDATED = "outdated"
    ERROR = "error"
    BUSY = "busy"
    RIGHT = "right"


class Sign(StrEnum):
    """A sign of degeneration in a text."""

    COMPRESSION = "compression"
    LOOP = "loop"
    SCRIPT = "script"


class Mode(StrEnum):
    """How answers are judged."""

    EXACT = "exact"
    DEGENERATION = "degeneration"


class Route(StrEnum):
    """How requests reach the decode engine."""

    ROUTER = "router"
    PAIR = "pair"


@dataclass(frozen=True, kw_only=True, slots=True)
class Instrument:
    """One metric.

    Attributes:
        name: The name without the prefix; counters carry `_total`.
        kind: Counter, gauge or histogram.
        help: The HELP text.
        labels: Names beyond `COMMON`.
        closed: The values of each label whose set is known beforehand. `concurrency` is closed too,
            but by the settings; only `info` has open ones.
        buckets: Upper bounds, histograms only.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    closed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()


_INSTRUMENTS = (
    Instrument(
        name="probes_total",
        kind=Kind.COUNTER,
        help="Probes by how many were sent at once and by what became of them. match: the recorded"
        " tokens; sound: other tokens, as mode degeneration allows, without its signs; swapped:"
        " goes with the known answer to another prompt and not with its own; diverged: other tokens"
        " than recorded; degenerate: a sign of degeneration beyond all recorded answers; outdated:"
        " other tokens than recorded, which the reference engine alone now answers as well; error:"
        " no answer, or none that could be read; busy: not sent, or refused, as the server had"
        " enough to do. swapped, diverged and degenerate are wrong answers.",
        labels=("concurrency", "result"),
        closed={"result": tuple(Result)},
    ),
    Instrument(
        name="rounds_total",
        kind=Kind.COUNTER,
        help="Rounds by the worst of their probes. wrong: swapped, diverged or degenerate; then"
        " outdated, error, busy; right: every probe was sent and is a match or sound.",
        labels=("result",),
        closed={"result": tuple(RoundResult)},
    ),
    Instrument(
        name="signs_total",
        kind=Kind.COUNTER,
        help="Answers with a sign of degeneration beyond what the recorded answers show. Looked"
        " for in both modes. One answer can have several.",
        labels=("sign",),
        closed={"sign": tuple(Sign)},
    ),
    Instrument(
        name="divergence_tokens",
        kind=Kind.HISTOGRAM,
        help="How many tokens of an answer (words, where the server returns no token ids) were as"
        " recorded before the first that was not. Answers that match are not in it. 0: the first"
        " token is another.",
        labels=("concurrency",),
        buckets=POSITION_BUCKETS,
    ),
    Instrument(
        name="first_token_logprob_difference",
        kind=Kind.HISTOGRAM,
        help="Distance of the first token's log probability (natural logarithm) from the recorded"
        " one. Only where the first token is the recorded one and the server returns logprobs.",
        labels=("concurrency",),
        buckets=LOGPROB_BUCKETS,
    ),
    Instrument(
        name="probe_seconds",
        kind=Kind.HISTOGRAM,
        help="Time from sending a probe to its whole answer, for probes that were answered.",
        labels=("concurrency",),
        buckets=PROBE_BUCKETS,
    ),
    Instrument(
        name="round_seconds",
        kind=Kind.HISTOGRAM,
        help="Time of one round.",
        buckets=ROUND_BUCKETS,
    ),
    Instrument(
        name="last_round_timestamp_seconds",
        kind=Kind.GAUGE,
        help="When the last round ended, whatever its result, Unix seconds. 0: none did yet.",
    ),
    Instrument(
        name="last_success_timestamp_seconds",
        kind=Kind.GAUGE,
        help="When the last round with the result right ended, Unix seconds. 0: none did yet.",
    ),
    Instrument(
        name="started_timestamp_seconds",
        kind=Kind.GAUGE,
        help="When the canary was started, Unix seconds.",
    ),
    Instrument(
        name="interval_seconds",
        kind=Kind.GAUGE,
        help="Mean time from the end of a round to the beginning of the next. While the server is"
        " busy or does not answer, it is up to eight times as long.",
    ),
    Instrument(
        name="golden_prompts",
        kind=Kind.GAUGE,
        help="Prompts whose answer is known. 0: the file of golden answers has gone, or can no"
        " longer be used, and no probe is sent.",
    ),
    Instrument(
        name="info",
        kind=Kind.GAUGE,
        help="Always 1: what is running, in the labels.",
        labels=("mode", "route", "version"),
        closed={"mode": tuple(Mode), "route": tuple(Route)},
    ),
)

CATALOG: Mapping[str, Instrument] = MappingProxyType(
    {instrument.name: instrument for instrument in _INSTRUMENTS}
)


def label_sets(instrument: Instrument, concurrencies: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """Yield every label set an instrument can take, in the order of its labels.

    Args:
        instrument: What to enumerate. `info` yields nothing: its one set is known at start.
        concurrencies: How many probes are sent at once, one value for each step of the sweep.
    """
    if instrument.name == "info":
        return
    values = (
        tuple(map(str, concurrencies)) if label == "concurrency" else instrument.closed[label]
        for label in instrument.labels
    )
    yield from itertools.product(*values)


def asked_for_in(query: str) -> bool:
    """Whether a query, or a name, is of what canaries expose, or of what is recorded of that."""
    return PREFIX in query


class CanaryMetrics(Collector):
    """The catalogue's series of one canary, all at 0 from the start, for a registry.

    Args:
        model_name: The model asked for.
        target: What is probed: the same text on every series.
        concurrencies: The steps of the sweep.
    """

    def __init__(self, model_name: str, target: str, concurrencies: Sequence[int]) -> None:
        self._common = (model_name, target)
        # Of its own, so that nothing is seen that did not pass through collect.
        self._registry = CollectorRegistry()
        self._made = {name: self._make(one) for name, one in CATALOG.items()}
        self.begin(concurrencies)

    def begin(self, concurrencies: Sequence[int]) -> None:
        """Have the series of these steps, at 0 where they are new."""
        for name, instrument in CATALOG.items():
            for labels in label_sets(instrument, concurrencies):
                self._made[name].labels(*self._common, *labels)

    def inc(self, name: str, **labels: str) -> None:
        """Count one more."""
        self._of(name, labels).inc()

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Put a value into a histogram."""
        self._of(name, labels).observe(value)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._of(name, labels).set(value)

    def collect(self) -> Iterable[Metric]:
        """Yield every family, without the `_created` series that nobody asks for."""
        for metric in self._registry.collect():
            metric.samples = [one for one in metric.samples if not one.name.endswith("_created")]
            yield metric

    def _of(self, name: str, labels: Mapping[str, str]) -> Any:
        values = (labels[label] for label in CATALOG[name].labels)
        return self._made[name].labels(*self._common, *values)

    def _make(self, instrument: Instrument) -> Any:
        kind: Any = {Kind.COUNTER: Counter, Kind.GAUGE: Gauge, Kind.HISTOGRAM: Histogram}[
            instrument.kind
        ]
        return kind(
            PREFIX + instrument.name,
            instrument.help,
            (*COMMON, *instrument.labels),
            registry=self._registry,
            **({"buckets": instrument.buckets} if instrument.buckets else {}),
        )
