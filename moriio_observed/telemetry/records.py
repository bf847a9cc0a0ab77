"""What the hot path keeps of a step for its spans: tuples of plain values and clock readings.

Times are readings of ``time.perf_counter``, seconds. Spans are built from these on another thread.
Pure: no OpenTelemetry here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from moriio_observed.reads import Exposure

__all__ = [
    "BarrierRecord",
    "HoldRecord",
    "ReadRecord",
    "SpanContext",
    "StepRecord",
    "parse_traceparent",
]

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class SpanContext(NamedTuple):
    """A span, as others refer to it.

    Attributes:
        trace_id: 128 bits.
        span_id: 64 bits.
        sampled: Whether its trace is kept anyway.
    """

    trace_id: int
    span_id: int
    sampled: bool


class BarrierRecord(NamedTuple):
    """One barrier call that had reads to wait for.

    Attributes:
        started_at: When it began.
        waited_s: Seconds in the call.
        site: ``layer`` or ``step``.
        layer: Index of the layer; None before the forward.
        reads: How many it covered.
        failed: How many of them had failed.
        in_flight: How many were in flight when it gave up.
    """

    started_at: float
    waited_s: float
    site: str
    layer: int | None
    reads: int
    failed: int
    in_flight: int


class StepRecord(NamedTuple):
    """One forward step that had reads.

    Attributes:
        context: The step's own span.
        parent: The span it is a child of: that of a request read in it; None for a root.
        links: Of each request that was read in it the read's span, if that is kept, else the
            caller's.
        number: The step's number since start.
        started_at: When its metadata were bound.
        ended_at: When its forward had ended on the host.
        mode: The runtime mode of its forward.
        requests: How many requests were read, or waited for, in it.
        blocked_s: Seconds in barriers.
        barriers: Its barrier calls, in order.
        exposed: The requests first exposed in it.
        cause: Why it was unprotected; None for a protected step.
        failed: Whether vLLM failed the step, so that nothing was served from it.
    """

    context: SpanContext
    parent: SpanContext | None
    links: tuple[SpanContext, ...]
    number: int
    started_at: float
    ended_at: float
    mode: str
    requests: int
    blocked_s: float
    barriers: tuple[BarrierRecord, ...]
    exposed: tuple[str, ...]
    cause: str | None
    failed: bool

    @property
    def spans(self) -> int:
        """How many spans it becomes."""
        return 1 + len(self.barriers)


class ReadRecord(NamedTuple):
    """The reads of one request, from the first post until its account was closed.

    Attributes:
        context: Their span.
        parent: The span in the request's own trace; None for a root.
        steps: The spans of the steps that have waited for them.
        request_id: vLLM's id of the request.
        remote: The engine the bytes come from.
        nbytes: Bytes of all reads.
        layers: How many reads were posted, one per layer.
        started_at: When the first was posted.
        ended_at: When the last was seen to have ended.
        outcome: ``landed``, ``failed``, ``aborted`` or ``superseded``.
        errors: mori's status codes of the failed reads.
        missing: Indices of the layers that did not land.
        exposure: That the request was exposed, or given up before it could be; None if not.
        action: What became of it then.
    """

    context: SpanContext
    parent: SpanContext | None
    steps: tuple[SpanContext, ...]
    request_id: str
    remote: str
    nbytes: int
    layers: int
    started_at: float
    ended_at: float
    outcome: str
    errors: tuple[str, ...]
    missing: tuple[int, ...]
    exposure: Exposure | None
    action: str | None

    @property
    def spans(self) -> int:
        """How many spans it becomes."""
        return 1


class HoldRecord(NamedTuple):
    """The blocks of one request that a prefill engine has held for a decode engine.

    Attributes:
        context: Their span.
        parent: The span in the request's own trace; None for a root.
        request_id: vLLM's id of the request.
        blocks: How many.
        started_at: From when on they were held.
        ended_at: Until when.
        outcome: ``released`` by the decode engine, or ``expired``.
    """

    context: SpanContext
    parent: SpanContext | None
    request_id: str
    blocks: int
    started_at: float
    ended_at: float
    outcome: str

    @property
    def spans(self) -> int:
        """How many spans it becomes."""
        return 1


def parse_traceparent(text: str) -> SpanContext | None:
    """Read a W3C ``traceparent``; None if it is not a valid one, which then counts as absent."""
    found = _TRACEPARENT.fullmatch(text.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) * int(span_id, 16):
        return None
    return SpanContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & 1))
