"""Old builds of mori have no event to wait for: our looks against upstream's, one a millisecond.

A thread lands a read so long after the wait has begun. How late is it seen, and what does it burn?
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from benchmarks.result import Row, compared
from moriio_observed.barrier import Waiter
from moriio_observed.reads import ReadLedger

LANDINGS_US = (50, 100, 300, 1000, 5000)
"""How long after a wait has begun its read lands, microseconds, and up to a fifth more or less."""
ROUNDS = 300
UPSTREAM_POLL_S = 0.001
FINE_S = 0.000_1
"""The last stretch before a landing, seconds, in which the landing thread sleeps no more."""


class Status:
    """A transfer as old builds of mori show it."""

    def __init__(self) -> None:
        self.landed_at: float | None = None

    def Succeeded(self) -> bool:  # noqa: N802  (mori's name)
        """Whether it has landed."""
        return self.landed_at is not None

    def Failed(self) -> bool:  # noqa: N802
        """It never fails."""
        return False


class Lander:
    """A thread that lands each status when it is due, without the GIL until then."""

    def __init__(self) -> None:
        self.orders: SimpleQueue[tuple[Status, float] | None] = SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while (order := self.orders.get()) is not None:
            status, due = order
            time.sleep(max(0.0, due - time.perf_counter() - FINE_S))
            while time.perf_counter() < due:
                time.sleep(0)
            status.landed_at = time.perf_counter()


def ours(status: Status) -> None:
    """Our barrier's wait."""
    ledger = ReadLedger()
    ledger.post("r", "remote", [(0, "model.layers.0", status)], nbytes=1, posted_at=0.0)
    reads = list(ledger.open_reads())
    Waiter(ledger, 30.0).wait(reads)


def bare(status: Status) -> None:
    """Upstream's wait, 0.28 to 0.30 and wherever mori has no event."""
    while not (status.Succeeded() or status.Failed()):
        time.sleep(UPSTREAM_POLL_S)


def one_wait(wait: Callable[[Status], None], lander: Lander, after_s: float) -> tuple[float, float]:
    """Microseconds from the landing to the return, and of processor time in the wait."""
    status = Status()
    burnt = time.thread_time()
    lander.orders.put((status, time.perf_counter() + after_s))
    wait(status)
    returned, burnt = time.perf_counter(), time.thread_time() - burnt
    return (returned - (status.landed_at or returned)) * 1e6, burnt * 1e6


def rows(_: pytest.MonkeyPatch) -> list[Row]:
    """How late, and what it burns, by the time of the landing."""
    lander, shuffled = Lander(), random.Random(7)  # noqa: S311  (the same in every run)
    found = []
    for after_us in LANDINGS_US:
        late: dict[Callable[[Status], None], list[float]] = {ours: [], bare: []}
        burnt: dict[Callable[[Status], None], list[float]] = {ours: [], bare: []}
        for _ in range(ROUNDS):
            for wait in shuffled.sample([ours, bare], 2):
                after_s = after_us * shuffled.uniform(0.8, 1.2) / 1e6
                overshoot, processor = one_wait(wait, lander, after_s)
                late[wait].append(overshoot)
                burnt[wait].append(processor)
        what = f"no event, landing after {after_us} us"
        found += [
            compared(f"{what}: landing to return", "us", late[ours], late[bare]),
            compared(f"{what}: processor time of the wait", "us", burnt[ours], burnt[bare]),
        ]
    lander.orders.put(None)
    return found
