"""What leaves a worker with a step, and what it costs the API server and who scrapes it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import reduce
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client import generate_latest as expose

# First: it puts the loopback in mori's place.
from benchmarks.sides import LAYERS, REQUESTS, ROUNDS, idle_step, reading_step

# isort: split
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from benchmarks.result import Budget, On, Row, measured
from moriio_observed.config import Settings
from moriio_observed.telemetry.catalog import PREFIX
from moriio_observed.telemetry.vllm_stats import ObservedPromMetrics, ObservedStats
from tests.unit import scripted
from tests.unit.scripted import Decode, ScriptedWorker

ENGINES, RANKS = 4, 8
REMOTES = 8
IDLE_S = 20.0
STEPS = 1000
SERIES = Budget(On.OURS, 400 + 2 * LAYERS)
FLUSHES = Budget(On.OURS, 1)
NONE = Budget(On.OURS, 0)


def of_rank(patch: pytest.MonkeyPatch, rank: int) -> Decode:
    """A decode engine's worker of this TP rank."""

    class Worker(ScriptedWorker):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.tp_rank = self._rank = rank
            self.world_size = RANKS

    patch.setattr(scripted, "ScriptedWorker", Worker)
    return Decode(patch, layers=LAYERS)


def idle_flushes(decode: Decode) -> float:
    """How often in a second idle steps have something to send."""
    step = idle_step(decode)
    started, sent = time.perf_counter(), 0
    while (passed := time.perf_counter() - started) < IDLE_S:
        sent += step() is not None
    return sent / passed


def micros(run: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Microseconds of a core that something takes, round by round."""
    found = []
    for _ in range(rounds):
        started = time.thread_time()
        run()
        found.append((time.thread_time() - started) * 1e6)
    return found


def api_server(engines: int, ranks: int) -> ObservedPromMetrics:
    """The metrics of an API server with so many engines."""
    return ObservedPromMetrics(
        SimpleNamespace(kv_transfer_config=None),
        {Gauge: Gauge, Counter: Counter, Histogram: Histogram},
        ["model_name", "engine"],
        {number: ["model", str(number)] for number in range(engines)},
        settings=Settings(),
        layers=LAYERS,
        tp_ranks=ranks,
        static={},
    )


def forget() -> None:
    """Take our metrics off the registry of this process."""
    for collector, names in list(REGISTRY._collector_to_names.items()):
        if any(name.startswith(PREFIX) for name in names):
            REGISTRY.unregister(collector)


def ours(registry: CollectorRegistry = REGISTRY) -> list[str]:
    """The names of all our series on a page."""
    lines = expose(registry).decode().splitlines()
    return [line for line in lines if line.startswith(PREFIX)]


def sent(ranks: list[Decode]) -> list[Any]:
    """What each rank sends with a step that reads."""
    found = []
    for decode in ranks:
        step = reading_step(decode)
        step()
        found.append(step().data)
    return found


def rows(patch: pytest.MonkeyPatch) -> list[Row]:
    """Bytes, CPU and series."""
    ranks = [of_rank(patch, rank) for rank in range(RANKS)]
    flushes = idle_flushes(ranks[0])
    payloads = sent(ranks)
    # vLLM's own way: the ranks' statistics into one, that through msgpack, that into the metrics.
    merged = reduce(ObservedStats.aggregate, [ObservedStats(data=each) for each in payloads]).data
    encode, decode = MsgpackEncoder().encode, MsgpackDecoder(SchedulerStats).decode

    def size(data: Any) -> int:
        return sum(map(len, encode(SchedulerStats(kv_connector_stats=data))))

    nothing = size(None)

    def through_msgpack(data: Any) -> None:
        decode(encode(SchedulerStats(kv_connector_stats=data)))

    bare_us = micros(lambda: through_msgpack(None))
    own_us = micros(lambda: through_msgpack(merged))
    forget()
    alone = api_server(1, 1)
    one = len(ours())
    del alone
    forget()
    server = api_server(ENGINES, RANKS)
    observing = micros(lambda: server.observe(merged, 0), STEPS)
    series = ours()
    scraping = micros(lambda: expose(REGISTRY))
    forget()
    step = f"a step that reads for {REQUESTS} requests"
    wide = f"{RANKS} ranks of {ENGINES} engines"
    return [
        measured("statistics sent by idle steps", "1/s", [flushes], FLUSHES),
        measured(f"statistics of {step}, one rank", "bytes", [size(payloads[0]) - nothing]),
        measured(f"statistics of {step}, {RANKS} ranks", "bytes", [size(merged) - nothing]),
        measured(
            f"msgpack there and back, {RANKS} ranks, {step}",
            "us",
            [own - bare for own, bare in zip(own_us, bare_us, strict=True)],
        ),
        measured(
            f"API server, {STEPS} steps like this of {RANKS} ranks",
            "ms of a core",
            [each * STEPS / 1e3 for each in observing],
        ),
        measured("series of one engine and rank", "", [one], SERIES),
        measured(f"series of {wide}", "", [len(series)]),
        measured("series named _created", "", [sum("_created" in s for s in series)], NONE),
        measured(f"one scrape of {wide}", "ms of a core", [each / 1e3 for each in scraping]),
    ]
