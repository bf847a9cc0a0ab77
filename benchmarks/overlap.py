"""How much of the time that reads take is hidden behind the model's compute, by barrier mode.

The hooks of one step that reads for one request: the layers' reads land one after the other from
the moment they are posted on, and each layer then computes for as long. A barrier in the layers
waits for the first read alone; one before the forward waits for all of them. Compute is a sleep:
on a GPU, too, the host has nothing to do meanwhile.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

# First: it puts the loopback in mori's place.
import benchmarks.sides  # noqa: F401

# isort: split
from vllm.config import CUDAGraphMode
from vllm.distributed.kv_transfer.kv_connector.v1.moriio.moriio_connector import (
    MoRIIOConnector,
)
from vllm.forward_context import override_forward_context

from benchmarks.result import Row, measured
from moriio_observed import upstream
from moriio_observed.loopback.enums import StatusCode
from moriio_observed.loopback.status import TransferStatus
from tests.unit.scripted import Decode, Session, layer_names

LAYERS = 16
PACE_S = 0.002
"""Between two landings, and for each layer's compute, seconds."""
ROUNDS, WARM_UP = 20, 3
MODES = ("auto", "adaptive", "layer", "step", "upstream")
"""Those in which a step waits for reads; with a guard, a request waits before it is in any step."""


class Paced(Session):
    """Posts reads that land one after the other, one each `PACE_S`."""

    def __init__(self) -> None:
        super().__init__()
        self._posted: SimpleQueue[tuple[TransferStatus, float] | None] = SimpleQueue()
        self._due = 0.0
        threading.Thread(target=self._land, daemon=True).start()

    def batch_read(self, *_: Any) -> TransferStatus:
        """Post one read."""
        status = TransferStatus()
        status.SetCode(StatusCode.IN_PROGRESS)
        self._due = max(self._due, time.perf_counter()) + PACE_S
        self._posted.put((status, self._due))
        return status

    def stop(self) -> None:
        """End the thread."""
        self._posted.put(None)

    def _land(self) -> None:
        while (posted := self._posted.get()) is not None:
            status, due = posted
            time.sleep(max(0.0, due - time.perf_counter()))
            status.SetCode(StatusCode.SUCCESS)


def stepping(decode: Decode) -> Callable[[], float]:
    """A step that reads for one request; each call gives its seconds from start to end."""
    connector, names = decode.connector, layer_names(LAYERS)
    context = SimpleNamespace(attn_metadata={}, cudagraph_runtime_mode=CUDAGraphMode.NONE)
    results = getattr(connector, "get_transfer_results", connector.get_finished)
    numbers = itertools.count()

    def step() -> float:
        decode.sent.clear()
        requests = [f"r{next(numbers)}"]
        metadata = decode.metadata(requests, requests)
        with override_forward_context(context):
            started = time.perf_counter()
            connector.bind_connector_metadata(metadata)
            connector.start_load_kv(context)
            for name in names:
                connector.wait_for_layer_load(name)
                time.sleep(PACE_S)
            ended = time.perf_counter()
            results(set())
            connector.get_kv_connector_stats()
            connector.clear_connector_metadata()
        return ended - started

    return step


def compute_s() -> float:
    """What the compute of one step takes by itself, seconds."""
    started = time.perf_counter()
    for _ in range(LAYERS):
        time.sleep(PACE_S)
    return time.perf_counter() - started


def rows(patch: pytest.MonkeyPatch) -> list[Row]:
    """The share of the transfer that bare upstream hides, and each mode of ours."""
    version = upstream.vllm_version()

    def decode(**how: Any) -> Decode:
        made = Decode(patch, layers=LAYERS, transfer_timeout=30.0, **how)
        made.worker.session = Paced()
        return made

    decodes = {"bare": decode(connector=MoRIIOConnector)}
    decodes |= {mode: decode(observed={"barrier": mode}) for mode in MODES}
    steps = {name: stepping(one) for name, one in decodes.items()}
    hidden: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(WARM_UP + ROUNDS):
        for name, step in steps.items():
            exposed_s = step() - compute_s()
            if number >= WARM_UP:
                hidden[name].append(100 * (1 - exposed_s / (LAYERS * PACE_S)))
    for one in decodes.values():
        one.worker.session.stop()
    return [
        measured(f"{version}: share of the transfer hidden behind compute, {name}", "%", shares)
        for name, shares in hidden.items()
    ]
