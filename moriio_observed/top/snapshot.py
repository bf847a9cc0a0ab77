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


def of_engines(scrape: Scrape) -> dict[Key, Scrape]:
    """The series of each engine that has some of ours."""
    parts: dict[Key, dict[tuple[str, Labels], float]] = {}
    for (name, labels), value in scrape.samples.items():
        carried = dict(labels)
        key = Key(carried.get("model_name", ""), carried.get("engine", ""))
        parts.setdefault(key, {})[name, labels] = value
    return {
        key: Scrape(samples)
        for key, samples in sorted(parts.items())
        if any(name.startswith(PREFIX) for name, _ in samples)
    }


def by(scrape: Scrape, name: str, label: str, **where: str) -> dict[str, float]:
    """The sums of a name's series for each value of a label; series without it have ``""``."""
    wanted = where.items()
    sums: dict[str, float] = {}
    for (sample, labels), value in scrape.samples.items():
        if sample == name and wanted <= labels:
            text = dict(labels).get(label, "")
            sums[text] = sums.get(text, 0.0) + value
    return sums


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
