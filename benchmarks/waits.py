"""From a landing on another thread to the return of the layer's hook, ours and upstream's."""

from __future__ import annotations

import itertools
import json
import queue
import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
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

from benchmarks.result import RESULTS, Budget, On, Row, compared, ratio_of
from moriio_observed.loopback.enums import StatusCode
from moriio_observed.loopback.status import TransferStatus, wait_for_all
from tests.unit.scripted import Decode, Engine, Session, layer_names

BARE, LOCK, STATUS = "bare", "a lock alone", "the loopback's WaitFor alone"
LANDINGS = 1000
OVERSHOOTS = RESULTS.with_name("bench-overshoots.json")
"""What the picture is drawn of: seconds, by side."""
MEDIAN = Budget(On.RATIO, 0.05)


class OldStatus:
    """A transfer as old builds of mori show it: nobody can wait for it but by looking."""

    def __init__(self, status: TransferStatus) -> None:
        self.Succeeded = status.Succeeded
        self.Failed = status.Failed
        self.Code = status.Code
        self.Message = status.Message


class Posting(Session):
    """Posts reads of the loopback's kind, which somebody lands later."""

    def __init__(self, *, old: bool) -> None:
        super().__init__()
        self.statuses: list[TransferStatus] = []
        self._old = old

    def batch_read(self, *_: Any) -> Any:
        """Post one read."""
        status = TransferStatus()
        status.SetCode(StatusCode.IN_PROGRESS)
        self.statuses.append(status)
        return OldStatus(status) if self._old else status


class Lander:
    """A thread that lands reads when told, as mori's completion thread does."""

    def __init__(self) -> None:
        self.landed_at = 0.0
        self._orders: queue.SimpleQueue[tuple[Sequence[Any], float] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def land(self, statuses: Sequence[Any], after_s: float) -> None:
        """Land reads after so many seconds."""
        self._orders.put((statuses, after_s))

    def stop(self) -> None:
        """End the thread."""
        self._orders.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            statuses, after_s = order
            time.sleep(after_s)
            self.landed_at = time.perf_counter()
            for status in statuses:
                status.SetCode(StatusCode.SUCCESS)


class Gate:
    """A lock that a landing opens: what this machine and Python need to wake a thread at all."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()

    def SetCode(self, _: StatusCode) -> None:  # noqa: N802  (mori's name)
        """Open it."""
        self.lock.release()

    def WaitFor(self, timeout_ms: int) -> None:  # noqa: N802  (mori's name)
        """Wait until it is open."""
        self.lock.acquire(timeout=timeout_ms / 1000)


@dataclass
class Side:
    """One way of waiting.

    Attributes:
        decode: The decode engine's worker side; None where only `alone` is waited for.
        alone: Makes what is waited for, with nothing around it.
        overshoots: Seconds from each landing to the return.
        waited_s: Seconds spent in all waits.
        cpu_s: Seconds of a core that they have burnt.
    """

    decode: Decode | None = None
    alone: type[Gate | TransferStatus] = TransferStatus
    overshoots: list[float] = field(default_factory=list)
    waited_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def micros(self) -> list[float]:
        """The overshoots in microseconds."""
        return [seconds * 1e6 for seconds in self.overshoots]

    @property
    def p99(self) -> float:
        """The longest hundredth of them begins here, in microseconds."""
        return statistics.quantiles(self.micros, n=100)[-1]

    @contextmanager
    def clock(self, lander: Lander) -> Iterator[None]:
        """Around one wait."""
        began, burnt = time.perf_counter(), time.thread_time()
        yield
        returned = time.perf_counter()
        self.cpu_s += time.thread_time() - burnt
        self.waited_s += returned - began
        self.overshoots.append(returned - lander.landed_at)


def one_wait(side: Side, lander: Lander, request_id: str, after_s: float) -> None:
    """Post the read of a request, wait for it in the hook of its layer, and clean up."""
    if side.decode is None:
        awaited = side.alone()
        lander.land([awaited], after_s)
        with side.clock(lander):
            awaited.WaitFor(30_000)
        return
    connector, [layer] = side.decode.connector, layer_names(1)
    context = SimpleNamespace(attn_metadata={}, cudagraph_runtime_mode=CUDAGraphMode.NONE)
    with override_forward_context(context):
        connector.bind_connector_metadata(side.decode.metadata([request_id], [request_id]))
        connector.start_load_kv(context)
        posted = side.decode.worker.session.statuses
        lander.land(posted[:], after_s)
        posted.clear()
        with side.clock(lander):
            connector.wait_for_layer_load(layer)
        getattr(connector, "get_transfer_results", connector.get_finished)(set())
        connector.get_kv_connector_stats()
        connector.clear_connector_metadata()


def sides(patch: pytest.MonkeyPatch) -> dict[str, Side]:
    """Every way of waiting: upstream's, ours by what mori offers, and what ours stands on."""

    def side(*, old: bool = False, **how: Any) -> Side:
        decode = Decode(patch, layers=1, transfer_timeout=30.0, **how)
        decode.worker.session = Posting(old=old)
        return Side(decode)

    ours = {"observed": {"barrier": "layer"}}
    found = {
        BARE: side(connector=MoRIIOConnector),
        "WaitFor": side(**ours),
        "neither": side(old=True, **ours),
        LOCK: Side(alone=Gate),
        STATUS: Side(alone=TransferStatus),
    }
    with patch.context() as newer:
        newer.setattr(Engine, "wait_all", staticmethod(wait_for_all), raising=False)
        found["wait_all"] = side(**ours)
    return found


def rows(patch: pytest.MonkeyPatch) -> list[Row]:
    """Medians, longest hundredths and CPU, of each way of waiting against upstream's poll."""
    lander = Lander()
    every = sides(patch)
    order = list(every.values())
    shuffle = random.Random(7).shuffle  # noqa: S311  (the same order in every run)
    numbers = itertools.count()
    for index in range(LANDINGS):
        shuffle(order)
        for side in order:
            one_wait(side, lander, f"r{next(numbers)}", 0.002 + index % 17 * 0.000_13)
    lander.stop()
    save({name: side.overshoots for name, side in every.items()})
    bare = every.pop(BARE)
    found = [
        compared(f"landing to return, {name}, median", "us", every.pop(name).micros, bare.micros)
        for name in (LOCK, STATUS)
    ]
    for name, side in every.items():
        budget = None if name == "neither" else MEDIAN
        what = f"landing to return, {name}"
        found += [
            compared(f"{what}, median", "us", side.micros, bare.micros, budget),
            ratio_of(f"{what}, 99th percentile", "us", side.p99, bare.p99),
            ratio_of(
                f"CPU while waiting, {name}",
                "%",
                100 * side.cpu_s / side.waited_s,
                100 * bare.cpu_s / bare.waited_s,
            ),
        ]
    return found


def save(overshoots: dict[str, list[float]], path: Path = OVERSHOOTS) -> None:
    """Keep the overshoots for the picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(overshoots))
