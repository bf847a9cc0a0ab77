"""Hook time of a step that has no read in flight, by layers and by barrier mode."""

from __future__ import annotations

import pytest

# First: it puts the loopback in mori's place.
from benchmarks.sides import ROUNDS, alternating, idle_step

# isort: split
from vllm.distributed.kv_transfer.kv_connector.v1.moriio.moriio_connector import (
    MoRIIOConnector,
)

from benchmarks.modes import MODES
from benchmarks.result import Budget, On, Row, compared
from moriio_observed import upstream
from moriio_observed.barrier import Era
from tests.unit.scripted import Decode

BARE = "bare"
LAYERS = (61, 128)
RATIO = Budget(On.RATIO, 0.5)
MORE = Budget(On.MORE, 10)
"""Microseconds for the first number of layers, where upstream's own layer hook does nothing."""


def budget(mode: str, layers: int) -> Budget | None:
    """What a mode may cost; none for `upstream`, which reaches upstream's own layer hooks."""
    if mode == "upstream":
        return None
    if upstream.Seams.detect().era is Era.STEP:
        return MORE if layers == LAYERS[0] else None
    return RATIO


def rows(patch: pytest.MonkeyPatch) -> list[Row]:
    """One row for each number of layers and each mode."""
    version = upstream.vllm_version()
    found = []
    for layers in LAYERS:
        decodes = {BARE: Decode(patch, connector=MoRIIOConnector, layers=layers)}
        for mode, observed in MODES.items():
            decodes[mode] = Decode(patch, observed, layers=layers)
        steps = {name: idle_step(decode, layers) for name, decode in decodes.items()}
        samples = alternating(steps, ROUNDS * 10)
        micros = {name: [s * 1e6 for s in seconds] for name, seconds in samples.items()}
        found += [
            compared(
                f"{version}: hooks of an idle step, {layers} layers, {mode}",
                "us",
                micros[mode],
                micros[BARE],
                budget(mode, layers),
            )
            for mode in MODES
        ]
    return found
