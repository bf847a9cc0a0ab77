"""What a read in flight takes, and what is left of a million of them."""

from __future__ import annotations

import gc
import math
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

# First: it puts the loopback in mori's place.
from benchmarks.sides import LAYERS, REQUESTS, reading_step

# isort: split
from vllm.distributed.kv_transfer.kv_connector.v1.moriio.moriio_connector import (
    MoRIIOConnector,
)

from benchmarks.result import Budget, On, Row, measured, ratio_of
from moriio_observed.guard import Guard
from moriio_observed.reads import ReadLedger
from tests.unit.fakes import FakeStatus
from tests.unit.scripted import Decode, layer_names

IN_FLIGHT = 256
"""Requests whose reads are in flight."""
READS = 1_000_000
WARM_UP = READS // 2
NOTHING = Budget(On.MORE, 0.01)
"""Blocks of memory per 1000 reads beyond upstream's: zero, but for a few numbers of ours that have
grown beyond what the interpreter keeps ready."""


def bytes_per_read() -> float:
    """What the ledger and the guard take for one read in flight."""
    statuses = [[FakeStatus() for _ in range(LAYERS)] for _ in range(IN_FLIGHT)]
    names = layer_names(LAYERS)
    ledger = ReadLedger()
    guard = Guard(waits=True, deadline_s=math.inf, watch_s=math.inf)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number, own in enumerate(statuses):
        request_id = f"r{number}"
        guard.announce({request_id: ()}, {})
        guard.posted(request_id, list(enumerate(own)), tracked=True)
        reads = list(zip(range(LAYERS), names, own, strict=True))
        ledger.post(request_id, "remote", reads, nbytes=1, posted_at=0.0)
        del reads
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / (IN_FLIGHT * LAYERS)


def blocks_left(step: Callable[[], Any]) -> float:
    """Blocks of memory by which a process has grown, for every 1000 of a million reads."""
    per_step = REQUESTS * LAYERS

    def run(reads: int) -> int:
        for _ in range(-(-reads // per_step)):
            step()
        gc.collect()
        return sys.getallocatedblocks()

    before = run(WARM_UP)
    return (run(READS) - before) / (READS / 1000)


def rows(patch: pytest.MonkeyPatch) -> list[Row]:
    """Bytes in flight, and growth."""
    bare = blocks_left(reading_step(Decode(patch, connector=MoRIIOConnector, layers=LAYERS)))
    ours = blocks_left(reading_step(Decode(patch, layers=LAYERS)))
    return [
        measured("ledger and guard, one read in flight", "bytes", [bytes_per_read()]),
        grown(ours, bare),
    ]


def grown(ours: float, bare: float) -> Row:
    """The row of what is left after a million reads."""
    name = f"left of {READS:,} reads, per thousand"
    if bare == 0:
        return measured(name, "blocks of memory", [ours], Budget(On.OURS, NOTHING.limit))
    return ratio_of(name, "blocks of memory", ours, bare, NOTHING)
