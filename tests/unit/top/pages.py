"""Pages of engines: made up, or as a real pair has shown them."""

from __future__ import annotations

import functools
from datetime import UTC, datetime

from prometheus_client.parser import text_string_to_metric_families

from moriio_observed.demo.metrics import Scrape
from moriio_observed.top.history import History
from moriio_observed.top.picture import Picture, Row, picture
from moriio_observed.top.snapshot import snapshot
from tests.incident.recording import Recording, load
from tests.unit.doctor.patients import ROOT

AT = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
URL = "http://decode.example:8000"
INFO = {
    "role": "kv_consumer",
    "mode": "read",
    "cudagraph_mode": "PIECEWISE",
    "barrier": "auto",
    "guard": "report",
    "vllm_version": "0.32.0",
    "mori_version": "1.2.4",
    "version": "0.1.0",
}


def line(name: str, value: float, /, **labels: str) -> str:
    """One sample of an engine: 0 of model m unless it is said."""
    carried = {"model_name": "m", "engine": "0", **labels}
    inside = ",".join(
        f'{label}="{text}"'
        for label, raw in carried.items()
        for text in (raw.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n"),)
    )
    prefix = "" if ":" in name or name.startswith("process") else "moriio_"
    return f"{prefix}{name}{{{inside}}} {value}\n"


def info(**changed: str) -> str:
    """What is running."""
    return line("config_info", 1, **{**INFO, **changed})


def steps(done: float, /, **labels: str) -> str:
    """Forward steps that had reads."""
    return line("steps_total", done, runtime_mode="PIECEWISE", reads="true", **labels)


def healthy(done: float = 0) -> str:
    """A decode engine that has done so many steps."""
    return info() + steps(done)


def waits(bounds: dict[str, float], /, **labels: str) -> str:
    """A histogram of waits by its cumulative counts."""
    counts = "".join(
        line("barrier_wait_seconds_bucket", count, **labels, le=bound)
        for bound, count in bounds.items()
    )
    return counts + line("barrier_wait_seconds_count", bounds["+Inf"], **labels)


def blocked(seconds: float, steps: float, rank: str) -> str:
    """Barrier time of a rank."""
    return line("step_blocked_seconds_sum", seconds, tp_rank=rank) + line(
        "step_blocked_seconds_count", steps, tp_rank=rank
    )


def seen(*pages: str, every_s: float = 2.0, url: str = URL) -> History:
    """A server that has shown these pages, one after the other."""
    history = History(url)
    for number, page in enumerate(pages):
        history = history.saw(snapshot(page, number * every_s))
    return history


def rows(*histories: History, now: float = 2.0) -> tuple[Row, ...]:
    """What is shown of servers."""
    return shown(*histories, now=now).rows


def shown(*histories: History, now: float = 2.0) -> Picture:
    """A picture of servers."""
    return picture(histories, now, AT)


def only(*pages: str, now: float = 2.0) -> Row:
    """What is shown of one engine that has shown these pages."""
    [row] = rows(seen(*pages), now=now)
    return row


@functools.cache
def _recording() -> Recording:
    return load(ROOT / "alerts/incident/incident.json.gz")


@functools.cache
def recorded(job: str, scrape: int) -> str:
    """The page of a real engine, ``decode`` or ``prefill``, of a recorded incident.

    The last page is as it was; of those before, it is what the recording has kept of them.
    """
    recording = _recording()
    page = recording.pages[job]
    if scrape in (-1, recording.scrapes - 1):
        return page
    lines = []
    for text in page.splitlines():
        shown = text
        for family in text_string_to_metric_families(f"{text}\n"):
            for sample in family.samples:
                inside = {**sample.labels, "job": job, "instance": f"{job}-0:8000"}
                key = ",".join(f'{name}="{inside[name]}"' for name in sorted(inside))
                values = recording.series.get(f"{sample.name}{{{key}}}")
                if values and values[scrape] is not None:
                    shown = f"{text.rpartition(' ')[0]} {values[scrape]}"
        lines.append(shown)
    return "\n".join(lines) + "\n"


def scrape_of(text: str) -> Scrape:
    """The numbers of a page."""
    return snapshot(text, 0.0).scrape
