"""Spans of what the hot path has recorded, on the exporting thread.

Identifiers and times were decided when things happened; here they only get names and attributes.
No prompt, token or header ever reaches a span.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanKind, TraceFlags
from opentelemetry.trace import SpanContext as OTelContext
from opentelemetry.trace.status import Status, StatusCode

from moriio_observed import __version__
from moriio_observed.log import get_logger
from moriio_observed.telemetry.read_metrics import certainty
from moriio_observed.telemetry.records import (
    BarrierRecord,
    HoldRecord,
    ReadRecord,
    SpanContext,
    StepRecord,
)
from moriio_observed.telemetry.span_queue import Records, Sampler, SpanQueue

__all__ = ["SpanBuilder", "TraceOutlet"]

ID_LIMIT = 512
"""Longest request id in a span, characters."""
HASH_DIGITS = 32
"""Hexadecimal digits of a hashed request id."""
IDS_LIMIT = 16
"""Most request ids in one attribute."""
LAYERS_LIMIT = 256
"""Most layer indices in one attribute."""

logger = get_logger(__name__)

_SCOPE = InstrumentationScope("moriio_observed", __version__)
_NS = 1_000_000_000


class SpanBuilder:
    """Makes spans of records.

    Args:
        resource: Who they are from.
        hash_ids: Whether spans carry a hash instead of the request id.
        sampler: Gives barriers their ids.
        offset_ns: What added to a clock reading of the records, in nanoseconds, gives the time
            since the epoch.
    """

    def __init__(
        self,
        resource: Resource,
        *,
        hash_ids: bool,
        sampler: Sampler,
        offset_ns: Callable[[], int] = lambda: time.time_ns() - time.perf_counter_ns(),
    ) -> None:
        self._resource = resource
        self._hash_ids = hash_ids
        self._sampler = sampler
        self._offset_ns = offset_ns

    def build(self, record: Records) -> list[ReadableSpan]:
        """The spans of a record; a step's barriers come after it."""
        offset_ns = self._offset_ns()
        match record:
            case StepRecord():
                barriers = (self._barrier(one, record, offset_ns) for one in record.barriers)
                return [self._step(record, offset_ns), *barriers]
            case ReadRecord():
                return [self._read(record, offset_ns)]
            case HoldRecord():
                return [self._hold(record, offset_ns)]

    def _step(self, step: StepRecord, offset_ns: int) -> ReadableSpan:
        timed_out = any(barrier.in_flight for barrier in step.barriers)
        error = step.cause or ("timeout" if timed_out else "step_failed" if step.failed else None)
        return self._span(
            "moriio.step",
            step.context,
            step.parent,
            (step.started_at, step.ended_at, offset_ns),
            {
                "moriio.step.number": step.number,
                "moriio.runtime_mode": step.mode,
                "moriio.requests": step.requests,
                "moriio.reads": sum(barrier.reads for barrier in step.barriers),
                "moriio.blocked_s": step.blocked_s,
                "moriio.exposed": len(step.exposed),
                "moriio.exposed.request_ids": tuple(map(self._id, step.exposed[:IDS_LIMIT]))
                or None,
                "moriio.unprotected.cause": step.cause,
            },
            error,
            links=step.links,
        )

    def _barrier(self, barrier: BarrierRecord, step: StepRecord, offset_ns: int) -> ReadableSpan:
        outcome = "timeout" if barrier.in_flight else "failed" if barrier.failed else "landed"
        return self._span(
            "moriio.barrier",
            self._sampler.child(step.context),
            step.context,
            (barrier.started_at, barrier.started_at + barrier.waited_s, offset_ns),
            {
                "moriio.site": barrier.site,
                "moriio.layer": barrier.layer,
                "moriio.reads": barrier.reads,
                "moriio.reads.failed": barrier.failed,
                "moriio.reads.in_flight": barrier.in_flight,
                "moriio.outcome": outcome,
            },
            None if outcome == "landed" else outcome,
        )

    def _read(self, read: ReadRecord, offset_ns: int) -> ReadableSpan:
        exposure = read.exposure
        cause = None if exposure is None else exposure.cause
        outcome = None if read.outcome in ("landed", "superseded") else read.outcome
        return self._span(
            "moriio.read",
            read.context,
            read.parent,
            (read.started_at, read.ended_at, offset_ns),
            {
                "moriio.request_id": self._id(read.request_id),
                "moriio.remote": _shown(read.remote),
                "moriio.bytes": read.nbytes,
                "moriio.layers": read.layers,
                "moriio.outcome": read.outcome,
                "moriio.layers.missing": read.missing[:LAYERS_LIMIT] or None,
                "moriio.exposure.cause": cause,
                "moriio.exposure.certainty": exposure and certainty(certain=exposure.certain),
                "moriio.exposure.layers": exposure and exposure.layers[:LAYERS_LIMIT],
                "moriio.exposure.action": read.action,
            },
            # mori's code says more than that it failed.
            next(iter(read.errors), cause or outcome),
            kind=SpanKind.CLIENT,
            links=read.steps,
        )

    def _hold(self, hold: HoldRecord, offset_ns: int) -> ReadableSpan:
        return self._span(
            "moriio.hold",
            hold.context,
            hold.parent,
            (hold.started_at, hold.ended_at, offset_ns),
            {
                "moriio.request_id": self._id(hold.request_id),
                "moriio.blocks": hold.blocks,
                "moriio.outcome": hold.outcome,
            },
            None if hold.outcome == "released" else hold.outcome,
        )

    def _id(self, request_id: str) -> str:
        if self._hash_ids:
            digest = hashlib.sha256(request_id.encode(errors="replace"))
            return digest.hexdigest()[:HASH_DIGITS]
        return _shown(request_id)

    def _span(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        times: tuple[float, float, int],
        attributes: Mapping[str, Any],
        error: str | None,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
        links: Iterable[SpanContext] = (),
    ) -> ReadableSpan:
        started_at, ended_at, offset_ns = times
        given = {key: value for key, value in attributes.items() if value is not None}
        if error is not None:
            given["error.type"] = error
        return ReadableSpan(
            name,
            context=_context(context),
            parent=None if parent is None else _context(parent),
            resource=self._resource,
            attributes=given,
            links=[Link(_context(link)) for link in links],
            kind=kind,
            instrumentation_scope=_SCOPE,
            status=Status(StatusCode.UNSET if error is None else StatusCode.ERROR, error),
            start_time=round(started_at * _NS) + offset_ns,
            end_time=round(ended_at * _NS) + offset_ns,
        )


def _shown(text: str) -> str:
    """Text that came from outside, cut and escaped."""
    return text[:ID_LIMIT].encode("unicode_escape").decode()


def _context(context: SpanContext) -> OTelContext:
    return OTelContext(
        context.trace_id,
        context.span_id,
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


class TraceOutlet:
    """The way out of spans, for a `Sender`.

    Args:
        queue: Where the records wait.
        builder: Makes them spans.
        exporter: Makes one when spans are to be sent and there is none.
        interval_s: How long a record waits at most, seconds.
        batch: How many spans are sent in one call at most.
    """

    signal = "traces"

    def __init__(
        self,
        queue: SpanQueue,
        builder: SpanBuilder,
        exporter: Callable[[], SpanExporter],
        *,
        interval_s: float,
        batch: int,
    ) -> None:
        self.interval_s = interval_s
        self._queue = queue
        self._builder = builder
        self._make_exporter = exporter
        self._exporter: SpanExporter | None = None
        self._batch = batch

    def flush(self) -> int | None:
        """Send what waits, up to a batch that cannot be sent; the others go on waiting.

        Returns how many spans were lost, None if there were none to send.
        """
        waiting = len(self._queue)
        if not waiting:
            return None
        if self._exporter is None:
            self._exporter = self._make_exporter()
        lost = 0
        # What comes meanwhile waits for the next call, so that this one ends.
        while waiting > 0 and not lost:
            spans: list[ReadableSpan] = []
            while waiting > 0 and len(spans) < self._batch:
                [record] = self._queue.take(1)
                waiting -= 1
                try:
                    spans += self._builder.build(record)
                except Exception:
                    logger.exception("What was recorded could not be made a span")
                    lost += record.spans
            for start in range(0, len(spans), self._batch):
                lost += self._lost(self._exporter, spans[start : start + self._batch])
        return lost

    def close(self, timeout_s: float) -> None:  # noqa: ARG002  (the exporter's takes no time)
        """Give the connection up; the next flush makes a new one."""
        exporter, self._exporter = self._exporter, None
        if exporter is not None:
            exporter.shutdown()

    def _lost(self, exporter: SpanExporter, spans: list[ReadableSpan]) -> int:
        try:
            result = exporter.export(spans)
        except Exception as error:
            logger.debug("An exporter of spans has failed", exc_info=error)
            return len(spans)
        return 0 if result is SpanExportResult.SUCCESS else len(spans)
