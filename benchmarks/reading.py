"""Hook time of a step that reads, ours against bare: what posting, waiting and settling cost.

The reads have landed by the time somebody looks: nobody waits, and all that is timed is work.
"""

from __future__ import annotations

import pytest

# First: it puts the loopback in mori's place.
from benchmarks.sides import LAYERS, REQUESTS, ROUNDS, alternating, reading_step

# isort: split
from vllm.distributed.kv_transfer.kv_connector.v1.moriio.moriio_connector import (
    MoRIIOConnector,
)

from benchmarks.result import Row, compared
from moriio_observed import upstream
from tests.unit.scripted import Decode


def rows(patch: pytest.MonkeyPatch) -> list[Row]:
    """One row: a step that reads for some requests, with our settings as they come."""
    bare = Decode(patch, connector=MoRIIOConnector, layers=LAYERS)
    ours = Decode(patch, layers=LAYERS)
    samples = alternating({"bare": reading_step(bare), "ours": reading_step(ours)}, ROUNDS * 2)
    micros = {side: [s * 1e6 for s in seconds] for side, seconds in samples.items()}
    name = f"{upstream.vllm_version()}: hooks of a step that reads for {REQUESTS} requests"
    return [compared(f"{name}, {LAYERS} layers", "us", micros["ours"], micros["bare"])]
