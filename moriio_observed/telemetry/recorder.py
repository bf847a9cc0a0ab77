"""What is kept of steps and reads for their spans.

Called on the thread that runs the steps. Errors, exposures and long waits are kept always; the rest
as the sampler says. Pure: no OpenTelemetry here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from moriio_observed.barrier import Wait
from moriio_observed.containment import Containment, contained
from moriio_observed.reads import Exposure, Read, RequestReads
from moriio_observed.telemetry.records import (
    BarrierRecord,
    ReadRecord,
    SpanContext,
    StepRecord,
    parse_traceparent,
)
from moriio_observed.telemetry.span_queue import Sampler, SpanQueue

__all__ = ["StepRecorder"]


def _barrier_record(wait: Wait) -> BarrierRecord:
    site, covered, outcome, ended_at = wait
    return BarrierRecord(
        ended_at - outcome.waited_s,
        outcome.waited_s,
        site,
        covered[0].layer if site == "layer" else None,
        len(covered),
        outcome.failed,
        outcome.in_flight,
    )


@dataclass(slots=True, eq=False)
class _OpenRead:
    context: SpanContext
    parent: SpanContext | None
    request: RequestReads
    kept: bool
    steps: list[SpanContext] = field(default_factory=list)
    seen_at: float | None = None
    exposure: Exposure | None = None
    action: str | None = None

    @property
    def link(self) -> SpanContext | None:
        """What a step links to: a span that somebody keeps."""
        return self.context if self.kept else self.parent


class StepRecorder:
    """Records the steps and reads of one decode worker.

    Args:
        queue: Where what is kept goes.
        sampler: Decides about what is unremarkable.
        slow_wait_s: A wait of at least this long is always kept, seconds.
        containment: Of errors made here.
        clock: The observer's.
    """

    def __init__(
        self,
        queue: SpanQueue,
        sampler: Sampler,
        *,
        slow_wait_s: float,
        containment: Containment,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._containment = containment
        self._queue = queue
        self._sampler = sampler
        self._slow_wait_s = slow_wait_s
        self._clock = clock
        self._parents: dict[str, str] = {}
        self._open: dict[str, _OpenRead] = {}
        self._posted: dict[str, tuple[RequestReads, bool]] = {}
        # Of the step that runs.
        self._barriers: list[Wait] = []
        self._in_step: dict[str, _OpenRead] = {}
        self._keeping = False

    @contained
    def know(self, traceparents: Mapping[str, str]) -> None:
        """Requests that will be read carry these trace contexts."""
        self._open_posted()
        self._parents.update(traceparents)

    @contained
    def forget(self, request_ids: Iterable[str]) -> None:
        """Requests are gone: what was not read yet never will be."""
        self._open_posted()
        for request_id in request_ids:
            self._parents.pop(request_id, None)

    @contained
    def posted(self, request: RequestReads, *, in_step: bool) -> None:
        """The reads of a request were posted.

        Args:
            request: They.
            in_step: Whether the step that runs may wait for them.
        """
        request_id = request.request_id
        if request_id in self._posted:
            self._open_posted()
        self._posted[request_id] = request, in_step
        if request_id in self._open:
            # What is missing of its earlier reads is what is in flight now.
            self._open_posted()

    def _open_posted(self) -> None:
        """Open the spans of what was posted since the last call.

        For all requests of a step at once: one by one, amid upstream's posting, each takes longer.
        """
        if not self._posted:
            return
        posted, self._posted = self._posted, {}
        for request_id, (request, in_step) in posted.items():
            if (earlier := self._open.pop(request_id, None)) is not None:
                self._close(earlier, "superseded", (), request.posted_at)
            text = self._parents.pop(request_id, None)
            parent = parse_traceparent(text) if text else None
            context = self._sampler.child(parent, request_id)
            opened = self._open[request_id] = _OpenRead(context, parent, request, context.sampled)
            if in_step:
                self._in_step[request_id] = opened
                self._keeping = self._keeping or opened.kept

    @contained
    def waited(self, waits: Sequence[Wait]) -> list[SpanContext | None] | None:
        """Barrier calls have ended, in this order, and nothing else has looked at reads meanwhile.

        Returns for each the span of a request that has waited in it and is kept, for an exemplar;
        None if there is none at all.
        """
        self._open_posted()
        # The first of a step covers every request that the step waits for.
        first = not self._barriers
        self._barriers += waits
        for _, covered, outcome, ended_at in waits:
            remarkable = (
                outcome.waited_s >= self._slow_wait_s or outcome.failed > 0 or outcome.in_flight > 0
            )
            if first or remarkable or self._keeping:
                self._waited(covered, ended_at, remarkable=remarkable)
            first = False
        return [self._example(covered) for _, covered, _, _ in waits] if self._keeping else None

    def _example(self, covered: Iterable[Read]) -> SpanContext | None:
        waiting = (self._open.get(read.request.request_id) for read in covered)
        return next((one.context for one in waiting if one is not None and one.kept), None)

    @contained
    def let_run(self, request_ids: Iterable[str]) -> None:
        """The reads of these requests have landed, before they are run at all."""
        self._open_posted()
        now = self._clock()
        for request_id in request_ids:
            if (waiting := self._open.get(request_id)) is not None:
                waiting.seen_at = now
                slow = now - waiting.request.posted_at >= self._slow_wait_s
                waiting.kept = waiting.kept or slow

    def _waited(self, covered: Iterable[Read], ended_at: float, *, remarkable: bool) -> None:
        for request_id in {read.request.request_id for read in covered}:
            if (waiting := self._open.get(request_id)) is not None:
                # What has landed is not among the open ones any more: the last call to cover a
                # request of which nothing is open has seen its end.
                waiting.seen_at = None if waiting.request.open else ended_at
                waiting.kept = waiting.kept or remarkable
                self._in_step[request_id] = waiting
                self._keeping = self._keeping or waiting.kept

    @contained
    def exposed(self, exposure: Exposure, action: str) -> None:
        """A request was exposed, or given up before it could be."""
        self._open_posted()
        found = self._open.get(exposure.request_id)
        if found is not None:
            found.kept = True
            found.exposure = exposure
            found.action = action

    @contained
    def step(
        self,
        *,
        number: int,
        started_at: float,
        ended_at: float,
        mode: str,
        blocked_s: float,
        exposed: tuple[str, ...],
        cause: str | None,
        failed: bool,
    ) -> None:
        """A step that had reads has ended; arguments as in `StepRecord`."""
        self._open_posted()
        barriers, self._barriers = self._barriers, []
        in_step, self._in_step = list(self._in_step.values()), {}
        self._keeping = False
        kept = [read for read in in_step if read.kept]
        # That an exposed request decodes on is no news.
        if not (kept or exposed or failed):
            return
        # One trace holds the request, its read and the step it has waited in; of several requests
        # those that are kept come first, and each is linked to.
        parent = next((read.parent for read in (*kept, *in_step) if read.parent), None)
        context = self._sampler.child(parent)
        for read in in_step:
            read.steps.append(context)
        self._queue.put(
            StepRecord(
                context=context,
                parent=parent,
                links=tuple(link for read in in_step if (link := read.link) is not None),
                number=number,
                started_at=started_at,
                ended_at=ended_at,
                mode=mode,
                requests=len(in_step),
                blocked_s=blocked_s,
                barriers=tuple(map(_barrier_record, barriers)),
                exposed=exposed,
                cause=cause,
                failed=failed,
            ),
            # The engine may be about to end.
            urgent=failed,
        )

    @contained
    def read_ended(
        self, request: RequestReads, outcome: str, errors: Iterable[str]
    ) -> SpanContext | None:
        """The account of a request's reads was closed; returns their span if it is kept."""
        self._open_posted()
        found = self._open.get(request.request_id)
        if found is None or found.request is not request:
            return None
        del self._open[request.request_id]
        # Accounts are closed after the forward, long after a barrier may have seen the end.
        seen_at = found.seen_at if outcome == "landed" else None
        ended_at = self._clock() if seen_at is None else seen_at
        return self._close(found, outcome, tuple(errors), ended_at)

    def _close(
        self, read: _OpenRead, outcome: str, errors: tuple[str, ...], ended_at: float
    ) -> SpanContext | None:
        if not (read.kept or outcome != "landed"):
            return None
        request = read.request
        missing = {one.layer for one in (*request.failed, *request.open)}
        self._queue.put(
            ReadRecord(
                context=read.context,
                parent=read.parent,
                steps=tuple(read.steps),
                request_id=request.request_id,
                remote=request.remote,
                nbytes=request.nbytes,
                layers=request.total,
                started_at=request.posted_at,
                ended_at=ended_at,
                outcome=outcome,
                errors=errors,
                missing=tuple(sorted(missing)),
                exposure=read.exposure,
                action=read.action,
            )
        )
        return read.context
