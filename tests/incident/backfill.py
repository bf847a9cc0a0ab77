"""A real Prometheus that has what it would have had, had it watched: series, rules, alerts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.incident.rules import Sample
from tests.incident.timeline import Timeline
from tests.monitoring import prometheus

_TIMESTAMP = "_timestamp_seconds"
KEPT = "--storage.tsdb.retention.time=100y"


@contextmanager
def watched(
    folder: Path, timeline: Timeline, samples: Sequence[Sample], began: float
) -> Iterator[str]:
    """A Prometheus over a timeline and what the rules made of it.

    Args:
        folder: Where it keeps its data; empty.
        timeline: What it scraped.
        samples: What the rules gave.
        began: When the timeline began, seconds since the epoch. The values of `…_timestamp_seconds`
            count from it, as all of the timeline does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "timeline.om"
    with text.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in _lines(timeline, samples, began))
    subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", text, folder / "data"],
        check=True,
        capture_output=True,
    )
    with prometheus(folder, {}, KEPT) as url:
        yield url


def _lines(timeline: Timeline, samples: Sequence[Sample], began: float) -> Iterator[str]:
    """OpenMetrics, in the order in which it happened: promtool takes no other."""
    seen = [
        (beat * timeline.interval_s, name, value)
        for name, values in timeline.series.items()
        for beat, value in enumerate(values)
        if value is not None
    ]
    seen += [(sample.at_s, _series(sample.labels), sample.value) for sample in samples]
    for at_s, name, value in sorted(seen):
        at = began + value if _TIMESTAMP in name else value
        yield f"{name} {at!r} {began + at_s:.3f}"
    yield "# EOF"


def _series(labels: Mapping[str, str]) -> str:
    inner = (
        f"{label}={json.dumps(value)}" for label, value in labels.items() if label != "__name__"
    )
    return f"{labels['__name__']}{{{','.join(inner)}}}"
