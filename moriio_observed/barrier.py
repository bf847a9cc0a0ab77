"""The READ barrier: where it stands in a step, and the waiting itself.

A barrier returns only when every read it covers is terminal, or its deadline passes. It waits on
events where mori offers them (``IOEngine.wait_all`` or ``TransferStatus.WaitFor``, amd-mori 1.2.0
and newer) and polls briefly where not. What it reports is what the statuses say afterwards, never
a return code.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from moriio_observed.reads import Read, ReadLedger

__all__ = ["Era", "Outcome", "Placement", "Wait", "Waiter", "place"]

SLICE_S = 1.0
"""Longest uninterrupted wait inside mori, seconds: a signal to the process is seen this soon."""

SPIN_S = 0.000_1
"""For how long a wait without events looks again and again, seconds; measured, as the next two, by
``benchmarks/polling.py``."""
PAUSE_SHARE = 0.25
"""How long it then sleeps between two looks, as a share of what it has waited."""
PAUSE_LONGEST_S = 0.000_2


class Era(enum.Enum):
    """Which READ barrier an upstream release has of its own."""

    LAYER = "layer"
    """0.28 to 0.30: each layer, except under FULL graphs."""
    LAYER_AND_STEP = "layer, or the step under FULL"
    """0.31 and 0.32: each layer; before the forward under a FULL graph that it can see."""
    STEP = "step"
    """0.33: before the forward, always."""
    UNKNOWN = "unknown"
    """A release we cannot read."""


class Placement(enum.Enum):
    """Where the effective barrier stands."""

    UPSTREAM = "upstream"
    """Upstream's own waits, untouched."""
    LAYER = "layer"
    """Ours, in each layer's hook; nothing waits under a FULL graph."""
    STEP = "step"
    """Ours, before the forward, for every read."""
    EVIDENCE = "evidence"
    """Ours, in the layer hooks seen to fire in this kind of step, before the forward otherwise."""
    OFF = "off"
    """No wait at all."""
    GATE = "gate"
    """No step has anything to wait for: a request is run once its reads have landed."""

    @property
    def where(self) -> str:
        """In plain words, for the log."""
        return {
            Placement.UPSTREAM: "where vLLM puts them",
            Placement.LAYER: "in the layer hooks",
            Placement.STEP: "before the forward",
            Placement.EVIDENCE: "in the layer hooks seen to fire, before the forward otherwise",
            Placement.OFF: "nowhere",
            Placement.GATE: "before a request is run at all",
        }[self]

    @cached_property
    def ours(self) -> bool:
        """Whether upstream's own waits are bypassed."""
        return self is not Placement.UPSTREAM

    @cached_property
    def waits(self) -> bool:
        """Whether a barrier of ours may fail a step."""
        return self not in (Placement.UPSTREAM, Placement.OFF, Placement.GATE)

    def protects_full_graphs(self, era: Era, *, hidden_full: bool) -> bool:
        """Whether a FULL graph step waits for its reads.

        Args:
            era: Upstream's barrier.
            hidden_full: Whether the model runner hides FULL from connectors (Model Runner V2).
        """
        if self is Placement.UPSTREAM:
            return era is Era.STEP or (era is Era.LAYER_AND_STEP and not hidden_full)
        return self in (Placement.STEP, Placement.EVIDENCE, Placement.GATE)


def place(setting: str, era: Era) -> Placement:
    """The effective barrier for the setting ``barrier`` on a release of `era`."""
    if setting == "auto":
        # Upstream's own placement in 0.33: no hook that fails to fire can expose a step there.
        setting = "step" if era is Era.STEP else "adaptive"
    if setting == "adaptive":
        return Placement.UPSTREAM if era is Era.UNKNOWN else Placement.EVIDENCE
    return Placement(setting)


class Outcome(NamedTuple):
    """How a barrier call ended.

    Attributes:
        waited_s: Seconds in the call.
        landed: Reads newly seen landed.
        failed: Covered reads that have failed.
        in_flight: Reads still in flight when the deadline passed.
    """

    waited_s: float
    landed: int
    failed: int
    in_flight: int

    @property
    def timed_out(self) -> bool:
        """Whether the deadline passed with reads in flight."""
        return self.in_flight > 0


Wait = tuple[str, list[Read], Outcome, float]
"""A barrier call that has ended: its site (``layer`` or ``step``), the reads it covered, how it
ended, and when."""


class Waiter:
    """Waits until reads are terminal.

    Args:
        ledger: Where the reads are kept.
        timeout_s: Seconds after which a call gives up.
        wait_all: ``IOEngine.wait_all(statuses, timeout_ms=)``, where mori has it.
        clock: A monotonic clock, seconds.
        sleep: Sleeps for seconds, or yields for 0; only used where mori has no event to wait for.
    """

    def __init__(
        self,
        ledger: ReadLedger,
        timeout_s: float,
        *,
        wait_all: Callable[..., Any] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._ledger = ledger
        self.timeout_s = timeout_s
        self._wait_all = wait_all
        self._clock = clock
        self._sleep = sleep

    def wait(self, reads: Sequence[Read]) -> Outcome:
        """Block until every one of these open reads is terminal, or the deadline passes.

        A failed read ends the wait for itself only: healthy reads of other requests are still
        waited for.
        """
        started = self._clock()
        deadline = started + self.timeout_s
        landed = 0
        pending = reads
        while True:
            landed_now, pending = self._ledger.sift(pending)
            landed += landed_now
            if not pending:
                break
            now = self._clock()
            remaining = deadline - now
            if remaining <= 0:
                break
            self._block(pending, min(remaining, SLICE_S), now - started)
        for read in pending:
            read.missed = "timeout"
        failed = len(reads) - landed - len(pending)
        return Outcome(self._clock() - started, landed, failed, len(pending))

    def _block(self, pending: Sequence[Read], longest_s: float, waited_s: float) -> None:
        """Wait for news of `pending`, for `longest_s` at most, after `waited_s` of waiting."""
        timeout_ms = math.ceil(longest_s * 1000)
        if self._wait_all is not None:
            self._wait_all([read.status for read in pending], timeout_ms=timeout_ms)
            return
        wait_for = getattr(pending[0].status, "WaitFor", None)
        if wait_for is not None:
            wait_for(timeout_ms)
            return
        # A sleep of nothing lets other threads have the GIL.
        pause = 0.0 if waited_s < SPIN_S else min(waited_s * PAUSE_SHARE, PAUSE_LONGEST_S)
        self._sleep(min(pause, longest_s))
