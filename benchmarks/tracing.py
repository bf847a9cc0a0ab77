"""What tracing costs on the hot path: on, with one trace in a hundred kept, against off."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

# First: it puts the loopback in mori's place.
from benchmarks.sides import LAYERS, REQUESTS, ROUNDS, alternating, idle_step, reading_step

# isort: split
import pytest

from benchmarks.result import Budget, On, Row, compared
from moriio_observed.traces.sink import Sink
from tests.unit.scripted import Decode


@contextmanager
def collector() -> Iterator[str]:
    """A collector in a process of its own; gives its URL."""
    ours, theirs = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        process = multiprocessing.Process(target=_collect, args=(theirs, folder), daemon=True)
        process.start()
        yield ours.recv()
        ours.send(None)
        process.join()


def _collect(parent: Connection, folder: str) -> None:
    with Sink(Path(folder)) as sink:
        parent.send(sink.url)
        parent.recv()


def rows(patch: pytest.MonkeyPatch) -> list[Row]:
    """Hook time with tracing on over off, in a step with reads and in one without."""
    with collector() as url:
        otlp = {"endpoint": url, "protocol": "http/protobuf", "sample_ratio": 0.01}
        off, again, on = (
            Decode(patch, observed, layers=LAYERS) for observed in (None, None, {"otlp": otlp})
        )
        reading = alternating({"off": reading_step(off), "on": reading_step(on)}, ROUNDS * 4)
        sides = {"off": idle_step(off), "again": idle_step(again), "on": idle_step(on)}
        idle = alternating(sides, ROUNDS * 10)
        on.connector.shutdown()
    untraced, another = (statistics.median(idle[side]) for side in ("off", "again"))
    # An idle step costs nothing more: nothing that two runs without tracing would not differ by.
    noise = max(abs(another - untraced) / untraced, 0.01)
    return [
        against(f"traced over untraced, a step that reads for {REQUESTS} requests", reading, 1.05),
        against("traced over untraced, an idle step", idle, 1 + noise),
    ]


def against(name: str, samples: Mapping[str, Sequence[float]], limit: float) -> Row:
    """The row of traced steps against untraced ones."""
    on, off = ([seconds * 1e6 for seconds in samples[side]] for side in ("on", "off"))
    return compared(name, "us", on, off, Budget(On.RATIO, round(limit, 3)))
