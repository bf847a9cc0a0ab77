"""Which traces are kept, and where what is kept of them waits to become spans.

Decided by the trace id alone, so that every process decides alike; a caller's own decision goes
before. What is not kept is not queued. Pure: no OpenTelemetry here.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable

from moriio_observed.telemetry.aggregate import Counter
from moriio_observed.telemetry.records import HoldRecord, ReadRecord, SpanContext, StepRecord

__all__ = ["Records", "Sampler", "SpanQueue"]

Records = StepRecord | ReadRecord | HoldRecord

_LOW_64_BITS = (1 << 64) - 1


class Sampler:
    """Gives spans their ids, and says which traces are kept anyway.

    Args:
        ratio: The share of traces without a caller that are kept, 0 to 1.
        bits: Random bits. vLLM seeds Python's shared generator, alike in every process.
    """

    def __init__(self, ratio: float, bits: Callable[[int], int] | None = None) -> None:
        self._below = round(ratio * (1 << 64))
        # A generator of our own, seeded by the system.
        self._bits = bits or random.Random().getrandbits  # noqa: S311  (unique, not secret)

    def child(self, parent: SpanContext | None, request_id: str | None = None) -> SpanContext:
        """A new span.

        Args:
            parent: In whose trace; None: in one of its own.
            request_id: The request this trace of its own is of: every rank that reads for it gives
                it the same trace.
        """
        span_id = self._bits(64) or 1
        if parent is not None:
            return SpanContext(parent.trace_id, span_id, parent.sampled)
        if request_id is None:
            trace_id = self._bits(128) or 1
        else:
            digest = hashlib.sha256(request_id.encode(errors="replace")).digest()
            trace_id = int.from_bytes(digest[:16])
        # As OpenTelemetry's ratio sampler does.
        return SpanContext(trace_id, span_id, trace_id & _LOW_64_BITS < self._below)


class SpanQueue:
    """What waits to become spans: bounded, and what does not fit is counted.

    Args:
        limit: How many records it holds at most.
        dropped: Counts the spans of those that did not fit.
        wake: Called when it is half full, or something is urgent.
    """

    def __init__(self, limit: int, dropped: Counter, wake: Callable[[], None]) -> None:
        self._records: deque[Records] = deque()
        self._limit = limit
        self._dropped = dropped
        self._wake = wake

    def __len__(self) -> int:
        return len(self._records)

    def put(self, record: Records, *, urgent: bool = False) -> None:
        """Add a record, or count it; one that is urgent shall leave at once."""
        waiting = len(self._records)
        if waiting >= self._limit:
            self._dropped.inc(record.spans)
            return
        self._records.append(record)
        if urgent or 2 * (waiting + 1) >= self._limit:
            self._wake()

    def take(self, most: int) -> list[Records]:
        """Remove and return the oldest, so many at most; called on the exporting thread."""
        return [self._records.popleft() for _ in range(min(most, len(self._records)))]
