"""What is kept of the blocks a prefill engine holds, for their spans."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from moriio_observed.containment import Containment, contained
from moriio_observed.telemetry.records import HoldRecord, parse_traceparent
from moriio_observed.telemetry.span_queue import Sampler, SpanQueue

__all__ = ["HoldRecorder"]


@dataclass(frozen=True, slots=True)
class _Held:
    traceparent: str | None
    blocks: int
    since: float


class HoldRecorder:
    """Records for how long a prefill engine holds blocks, from its scheduler side.

    Args:
        queue: Where what is kept goes.
        sampler: Decides about what is unremarkable.
        containment: Of errors made here.
        clock: A clock as that of the steps.
    """

    def __init__(
        self,
        queue: SpanQueue,
        sampler: Sampler,
        *,
        containment: Containment,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._containment = containment
        self._queue = queue
        self._sampler = sampler
        self._clock = clock
        self._held: dict[str, _Held] = {}

    @contained
    def held(self, request_id: str, traceparent: str | None, blocks: int) -> None:
        """Blocks are held from now on."""
        self._held[request_id] = _Held(traceparent, blocks, self._clock())

    @contained
    def ended(self, request_ids: Iterable[str], outcome: str) -> None:
        """Blocks were ``released``, or have ``expired``."""
        for request_id in request_ids:
            if (held := self._held.pop(request_id, None)) is None:
                continue
            parent = parse_traceparent(held.traceparent) if held.traceparent else None
            context = self._sampler.child(parent)
            if context.sampled or outcome != "released":
                self._queue.put(
                    HoldRecord(
                        context,
                        parent,
                        request_id,
                        held.blocks,
                        held.since,
                        self._clock(),
                        outcome,
                    )
                )
