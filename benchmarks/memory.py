"""What a read in flight takes, and what is left of a million of them."""

from __future__ import annotations

import gc
import itertools
import math
import sys
import tracemalloc

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
NOTHING = Budget(On.MORE, 0.001)
"""Blocks of memory per 1000 reads beyond upstream's: nothing that grows with the reads."""
KEPT_READY = 256
"""The greatest number for which the interpreter needs no memory of its own."""


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
        guard.posted(request_id, list(enumerate(own)))
        reads = list(zip(range(LAYERS), names, own, strict=True))
        ledger.post(request_id, "remote", reads, nbytes=1, posted_at=0.0)
        del reads
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / (IN_FLIGHT * LAYERS)


def numbers(decode: Decode) -> int:
    """How many blocks of memory the values of our series take; bare upstream has none.

    A value takes none until it has grown beyond `KEPT_READY`, and then one however far it grows.
    So there can be no more of them than values, of which slow buckets fill after many reads.
    """
    aggregate = getattr(decode.connector, "_aggregate", None)
    if aggregate is None:
        return 0
    payload = aggregate.cumulative()
    values = list(payload["counters"].values())
    for counts, total in payload["histograms"].values():
        values += [*counts, total]
    return sum(isinstance(value, float) or value > KEPT_READY for value in values)


def blocks_left(decode: Decode) -> float:
    """Blocks of memory by which a process has grown, for every 1000 of a million reads.

    Without those of our series' values: see `numbers`.
    """
    step = reading_step(decode)
    per_step = REQUESTS * LAYERS

    def run(reads: int) -> int:
        # It counts no steps in a number of its own, which would take a block.
        for _ in itertools.repeat(None, -(-reads // per_step)):
            step()
        gc.collect()
        return sys.getallocatedblocks() - numbers(decode)

    before = run(WARM_UP)
    # Once more while there is such a number: it takes a block itself.
    before = run(0)
    return (run(READS) - before) / (READS / 1000)


def rows(patch: pytest.MonkeyPatch) -> list[Row]:
    """Bytes in flight, and growth."""
    bare = blocks_left(Decode(patch, connector=MoRIIOConnector, layers=LAYERS))
    ours = blocks_left(Decode(patch, layers=LAYERS))
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
