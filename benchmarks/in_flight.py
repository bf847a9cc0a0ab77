"""Hook time of a step with reads in flight that do not change, by the number of requests."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

# First: it puts the loopback in mori's place.
from benchmarks.sides import LAYERS, ROUNDS, step_that_loads_first

# isort: split
from vllm.config import CUDAGraphMode
from vllm.distributed.kv_transfer.kv_connector.v1.moriio.moriio_connector import (
    MoRIIOConnector,
)
from vllm.forward_context import override_forward_context

from benchmarks.modes import UNSAFE
from benchmarks.result import Budget, On, Row, exponent, measured
from moriio_observed import upstream
from tests.unit.scripted import Decode, ScriptedWorker, layer_names

BARE = "bare"
REQUESTS = (1, 8, 64, 256)
TURN = 10
"""So many steps of one number of requests at a time: the first finds cold caches, a median none."""
RUNNING = 32
"""Requests that decode in every step and read nothing."""
PATIENT = {"transfer_timeout": 3600.0}
SIDES: Mapping[str, Mapping[str, Any]] = {
    BARE: {"connector": MoRIIOConnector},
    "no barrier": {"observed": UNSAFE},
    "given up": {"observed": {"barrier": "step"}},
    "guarded": {"observed": {"guard": "recompute"}, **PATIENT},
    "guarded, given up": {"observed": {"guard": "recompute"}},
}
"""Ours wherever reads stay in flight from step to step: no barrier, a barrier that has given them
up, a guard that does not run their requests yet, and one that has given them up."""
EXPONENT = Budget(On.OURS, 0.1)


class CleanUp:
    """Upstream's clean-up, timed, or left out: what of a step is not ours.

    It looks at every read of every request, and whatever runs after it finds the caches cold.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        self.left_out = False
        clean_up = ScriptedWorker._pop_done_transfers

        def timed(worker: Any) -> set[str]:
            started = time.perf_counter()
            done = set() if self.left_out else clean_up(worker)
            self.seconds = time.perf_counter() - started
            return done

        patch.setattr(ScriptedWorker, "_pop_done_transfers", timed)


def in_flight_step(decode: Decode, requests: int) -> Callable[[], None]:
    """Post the reads of so many requests, which never end; gives the hooks of any later step."""
    connector = decode.connector
    reading = [f"reads-{number}" for number in range(requests)]
    running = [f"runs-{number}" for number in range(RUNNING)]
    names = layer_names(LAYERS)
    # The layer hooks of upstream return at once there: it waits before the forward, or not at all.
    context = SimpleNamespace(attn_metadata={}, cudagraph_runtime_mode=CUDAGraphMode.FULL)
    results = getattr(connector, "get_transfer_results", connector.get_finished)
    nobody: set[str] = set()
    # Who waits for a guard is not scheduled; all others are.
    guarded = getattr(connector, "_guard", None) is not None and connector._guard.waits
    scheduled = running if guarded else reading + running
    with override_forward_context(context):
        connector.bind_connector_metadata(decode.metadata(reading, scheduled))
        # 0.33 fails the step whose reads do not come.
        with contextlib.suppress(upstream.TransferError):
            connector.start_load_kv(context)
        results(nobody)
        connector.get_kv_connector_stats()
    metadata = decode.metadata((), scheduled)

    def step() -> None:
        step_that_loads_first(connector, metadata, context, names)

    return step


@dataclass
class Taken:
    """Microseconds of a step's hooks, step by step.

    Attributes:
        alone: With upstream's clean-up left out.
        around: Around it.
        inside: In it.
    """

    alone: list[float] = field(default_factory=list)
    around: list[float] = field(default_factory=list)
    inside: list[float] = field(default_factory=list)

    def turn(self, step: Callable[[], None], clean_up: CleanUp) -> None:
        """Take some steps with it, and as many without."""
        for left_out in (False, True):
            clean_up.left_out = left_out
            for _ in range(TURN):
                started = time.perf_counter()
                step()
                own = (time.perf_counter() - started - clean_up.seconds) * 1e6
                if left_out:
                    self.alone.append(own)
                else:
                    self.around.append(own)
                    self.inside.append(clean_up.seconds * 1e6)


def in_turns(steps: Mapping[int, Callable[[], None]], clean_up: CleanUp) -> Mapping[int, Taken]:
    """What each number of requests takes; all by turns, so that a busy machine hits all of them."""
    taken = {requests: Taken() for requests in steps}
    for _ in range(ROUNDS // TURN):
        for requests, step in steps.items():
            taken[requests].turn(step, clean_up)
    return taken


Curve = list[tuple[float, float]]


def curve_of(name: str, curve: Curve, budget: Budget | None = None) -> Row:
    """The row of one curve's exponent."""
    return measured(f"{name}, exponent", "", [exponent(curve)], budget)


def rows(patch: pytest.MonkeyPatch) -> list[Row]:
    """One row for each side and number of requests, and one for each curve's exponent."""
    version = upstream.vllm_version()
    clean_up = CleanUp(patch)
    found = []
    for side, settings in SIDES.items():
        own: Curve = []
        whole: Curve = []
        theirs: Curve = []
        clean_up.left_out = False
        steps = {
            requests: in_flight_step(Decode(patch, layers=LAYERS, **settings), requests)
            for requests in REQUESTS
        }
        for requests, taken in in_turns(steps, clean_up).items():
            name = f"{version}: step with {requests} requests in flight, {side}"
            found.append(measured(f"{name}, upstream's clean-up left out", "us", taken.alone))
            found.append(measured(f"{name}, behind upstream's clean-up", "us", taken.around))
            if side == BARE:
                found.append(measured(f"{name}, the clean-up", "us", taken.inside))
            own.append((requests, statistics.median(taken.alone)))
            whole.append((requests, statistics.median(taken.around)))
            theirs.append((requests, statistics.median(taken.inside)))
        name = f"{version}: step with requests in flight, {side}"
        if side == BARE:
            found.append(curve_of(f"{name}, the clean-up", theirs))
        found.append(curve_of(f"{name}, behind upstream's clean-up", whole))
        found.append(
            curve_of(
                f"{name}, upstream's clean-up left out", own, None if side == BARE else EXPONENT
            )
        )
    return found
