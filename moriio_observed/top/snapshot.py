"""One look at a server's /metrics: the numbers that the view is made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from moriio_observed.demo.metrics import Labels, Scrape
from moriio_observed.doctor.exposition import parse
from moriio_observed.telemetry.catalog import PREFIX

STARTED = "process_start_time_seconds"
RUNNING = "vllm:num_requests_running"
ANSWERED = "vllm:request_success_total"
_OTHERS = frozenset({STARTED, RUNNING, ANSWERED})
_CUMULATIVE = ("_total", "_bucket", "_sum", "_count")


class Key(NamedTuple):
    """What tells the engines behind one server apart."""

    model_name: str
    engine: str


@dataclass(frozen=True)
class Snapshot:
    """What a server said.

    Attributes:
        at: When, in seconds of a clock that only grows.
        scrape: Our series and the few of vLLM's that go with them.
    """

    at: float
    scrape: Scrape


def snapshot(text: str, at: float) -> Snapshot:
    """The numbers of a page.

    Raises:
        NotMetricsError: It is not in Prometheus' text format.
    """
    return Snapshot(
        at,
        Scrape(
            {
                (name, frozenset(labels.items())): value
                for name, labels, value in parse(text).samples
                if (name.startswith(PREFIX) or name in _OTHERS) and _sound(name, labels, value)
            }
        ),
    )


def cumulative(name: str) -> bool:
    """Whether a sample only grows, until its process starts again."""
    return name.endswith(_CUMULATIVE)


class Series:
    """Series by name: a picture asks for many names, and a page has hundreds."""

    def __init__(self, scrape: Scrape | None = None) -> None:
        self._named: dict[str, dict[tuple[str, Labels], float]] = {}
        for (name, labels), value in scrape.samples.items() if scrape else ():
            self.add(name, labels, value)

    def add(self, name: str, labels: Labels, value: float) -> None:
        """One more."""
        self._named.setdefault(name, {})[name, labels] = value

    def named(self, name: str) -> Scrape:
        """Those of a name."""
        return Scrape(self._named.get(name, {}))

    @property
    def names(self) -> list[str]:
        """The names there are."""
        return list(self._named)

    def total(self, name: str, **labels: str) -> float:
        """The sum of those of a name that have these labels; 0 when there are none."""
        return self.named(name).total(name, **labels)

    def values(self, name: str) -> list[float]:
        """The value of each of a name."""
        return list(self.named(name).samples.values())

    def quantile(self, name: str, q: float, **labels: str) -> float | None:
        """A quantile of a histogram over those that have these labels; None without a value."""
        return self.named(f"{name}_bucket").quantile(name, q, **labels)

    def by(self, name: str, label: str, **where: str) -> dict[str, float]:
        """The sums of a name's for each value of a label; those without it have ``""``."""
        sums: dict[str, float] = {}
        for (_, labels), value in self.named(name).samples.items():
            if where.items() <= labels:
                text = dict(labels).get(label, "")
                sums[text] = sums.get(text, 0.0) + value
        return sums


def of_engines(scrape: Scrape) -> dict[Key, Series]:
    """The series of each engine that has some of ours."""
    parts: dict[Key, Series] = {}
    for (name, labels), value in scrape.samples.items():
        carried = dict(labels)
        key = Key(carried.get("model_name", ""), carried.get("engine", ""))
        parts.setdefault(key, Series()).add(name, labels, value)
    return {
        key: series
        for key, series in sorted(parts.items())
        if any(name.startswith(PREFIX) for name in series.names)
    }


def _sound(name: str, labels: Mapping[str, str], value: float) -> bool:
    """Whether a sample can be counted with; gauges may be NaN, and say so by it."""
    if not cumulative(name):
        return True
    return math.isfinite(value) and not (name.endswith("_bucket") and math.isnan(_bound(labels)))


def _bound(labels: Mapping[str, str]) -> float:
    try:
        return float(labels["le"])
    except (KeyError, ValueError):
        return math.nan
