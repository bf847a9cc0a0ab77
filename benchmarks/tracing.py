"""What tracing costs on the hot path: on, with one trace in a hundred kept, against off."""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

# First: it puts the loopback in mori's place.
from benchmarks.sides import LAYERS, ROUNDS, idle_step, median_seconds

# isort: split
import pytest
from vllm.forward_context import override_forward_context

from moriio_observed.traces.sink import Sink
from tests.unit.fakes import FakeStatus
from tests.unit.scripted import Decode, Session, layer_names

REQUESTS = 8
BUDGET = 1.05


class Landed(Session):
    """Posts reads that have landed by the time somebody looks."""

    def batch_read(self, *_: object) -> FakeStatus:
        """Post one read."""
        status = FakeStatus()
        status.land()
        return status


def reading_step(decode: Decode) -> Callable[[], None]:
    """The hooks of one step that reads for some requests, each layer's among them."""
    connector = decode.connector
    decode.worker.session = Landed()
    names = layer_names(LAYERS)
    mode = decode.config.compilation_config.cudagraph_mode
    context = SimpleNamespace(attn_metadata={}, cudagraph_runtime_mode=mode)
    results = getattr(connector, "get_transfer_results", connector.get_finished)
    nobody: set[str] = set()
    numbers = itertools.count()

    def step() -> None:
        requests = [f"r{next(numbers)}" for _ in range(REQUESTS)]
        metadata = decode.metadata(requests, requests)
        with override_forward_context(context):
            connector.bind_connector_metadata(metadata)
            connector.start_load_kv(context)
            for name in names:
                connector.wait_for_layer_load(name)
            results(nobody)
            connector.get_block_ids_with_load_errors()
            connector.get_kv_connector_stats()
            connector.clear_connector_metadata()

    return step


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


def cost_of_tracing(patch: pytest.MonkeyPatch) -> bool:
    """Hook time with tracing on over off, in a step with reads and in one without."""
    with collector() as url:
        otlp = {"endpoint": url, "protocol": "http/protobuf", "sample_ratio": 0.01}
        off, again, on = (
            Decode(patch, observed, layers=LAYERS) for observed in (None, None, {"otlp": otlp})
        )
        reading = paired({"off": reading_step(off), "on": reading_step(on)}, ROUNDS * 4)
        sides = {"off": idle_step(off), "again": idle_step(again), "on": idle_step(on)}
        idle = median_seconds(sides, ROUNDS * 10)
        on.connector.shutdown()
    noise = abs(idle["again"] - idle["off"]) / idle["off"]
    quiet = idle["on"] / idle["off"]
    print(
        f"tracing on, 1 % kept, over off: a step that reads for {REQUESTS} requests {reading:.3f} "
        f"(budget {BUDGET}), a step without reads {quiet:.3f} (budget 1, two runs without tracing "
        f"differ by {noise:.3f} here)"
    )
    return reading <= BUDGET and quiet <= 1 + max(noise, 0.01)


def paired(sides: dict[str, Callable[[], None]], rounds: int) -> float:
    """The median ratio of the second side over the first, round by round."""
    first, second = sides.values()
    ratios = []
    for number in range(rounds):
        seconds = {}
        for run in (first, second) if number % 2 else (second, first):
            started = time.perf_counter()
            run()
            seconds[run] = time.perf_counter() - started
        ratios.append(seconds[second] / seconds[first])
    return statistics.median(ratios)
