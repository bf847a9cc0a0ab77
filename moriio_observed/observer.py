"""One decode worker's view of its forward steps: what was read, waited for and consumed.

The observer is told what upstream does, in the order of a step:

    begin_step → posted … → before_forward → at_layer … → end_forward → settle

A step that begins while nothing is in flight is only counted, as long as nothing is posted in it:

    begin_idle_step → end_idle_step

``start_load_kv`` may also come after the forward (vLLM 0.29 and newer, when no read is due); then
``end_forward`` comes first and what is posted feeds no attention of this step. The observer waits
where the effective barrier stands, asks the ledger for the verdict of the step, and counts.
It knows no vLLM: upstream's names end in ``upstream``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat
from types import MappingProxyType
from typing import Any, NamedTuple

from moriio_observed.barrier import Era, Outcome, Placement, Wait, Waiter
from moriio_observed.log import get_logger
from moriio_observed.reads import (
    Exposure,
    LateReads,
    Read,
    ReadLedger,
    ReadState,
    Settled,
    Status,
    Verdict,
)
from moriio_observed.telemetry.read_metrics import ReadMetrics, certainty
from moriio_observed.telemetry.recorder import StepRecorder

__all__ = ["NO_NOTES", "ReadObserver", "StepNotes"]

logger = get_logger(__name__)

ID_LIMIT = 512
"""Longest request id written to the log, characters."""

FULL = "FULL"

SHORT_WAIT_S = 0.01
"""A wait that ends well in less time is counted after the forward: that is waiting to go on."""


_NOTHING: Mapping[str, Any] = MappingProxyType({})


class StepNotes(NamedTuple):
    """What the scheduler side knows of a step.

    Attributes:
        scheduled: Tokens per request in this step; None if unknown.
        loads_before_forward: Whether ``start_load_kv`` precedes the forward; None if unknown
            (then it is taken to).
        ended: Requests that have finished or were preempted since the step before: their blocks
            may belong to others in this step.
        held: Requests whose blocks are from now on kept from reuse until their reads have ended.
        lease_left: For how many seconds P still holds what requests read from this step on.
        built_at: When that was so, seconds since the epoch.
        traceparents: The trace contexts that requests carry which are read from this step on.
    """

    scheduled: Mapping[str, int] | None = None
    loads_before_forward: bool | None = None
    ended: Collection[str] = ()
    held: Collection[str] = ()
    lease_left: Mapping[str, float] = _NOTHING
    built_at: float = 0.0
    traceparents: Mapping[str, str] = _NOTHING

    def lease_left_at(self, now: float) -> Mapping[str, float]:
        """For how long P holds what is read, at a time since the epoch: steps may queue."""
        age_s = max(0.0, now - self.built_at)
        return {request_id: left - age_s for request_id, left in self.lease_left.items()}

    @property
    def tells(self) -> bool:
        """Whether there is anything in it that a worker must heed beyond counting the step."""
        return bool(self.ended or self.held or self.lease_left or self.traceparents)

    @property
    def runs_forward(self) -> bool:
        """Whether a forward runs at all in this step."""
        return self.scheduled is None or bool(self.scheduled)


NO_NOTES = StepNotes()
"""Of a step whose scheduler side is upstream's own."""


@dataclass(slots=True, eq=False)
class _Step:
    notes: StepNotes
    mode: str
    started_at: float = 0.0
    ended: bool = False
    ended_at: float | None = None
    failed: bool = False
    loads_done: bool = False
    reads: bool = False
    cause: str | None = None
    exposed: tuple[str, ...] = ()
    blocked_s: float = 0.0
    exposures: tuple[Exposure, ...] = ()
    given_up: frozenset[str] = frozenset()
    relied_on: set[str] | None = None

    @property
    def full_graph(self) -> bool:
        return self.mode == FULL


class ReadObserver:
    """Watches the reads of one decode worker and keeps the barrier.

    Everything is called on the one thread that runs the worker's steps.

    Args:
        placement: The effective barrier.
        era: Which barrier upstream has.
        ledger: The reads.
        waiter: How to wait for them.
        metrics: Where events are counted.
        action: What becomes of a request whose blocks are reported as load errors
            ("recomputed" or "failed").
        hookless: Names of layers whose hook never fires, or not before the forward is judged
            (recurrent state, draft models).
        clock: A monotonic clock, seconds.
        spans: Records what is traced; None where nothing is.
        decided: Whether it is known what becomes of a request, or a guard has yet to say.

    Attributes:
        armed: Whether the layer hook has anything to do. The one thing a step without reads
            looks at, once per layer. Always true where upstream's own barrier is left alone.
        idle: Whether the step began with `begin_idle_step` and has not been woken since. Still so
            when the next one begins, that one is at rest as well.
        news: Whether something happened that should leave the worker at once.
    """

    def __init__(
        self,
        *,
        placement: Placement,
        era: Era,
        ledger: ReadLedger,
        waiter: Waiter,
        metrics: ReadMetrics,
        action: str,
        hookless: Collection[str] = (),
        clock: Callable[[], float] = time.perf_counter,
        spans: StepRecorder | None = None,
        decided: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.armed = self._armed_at_rest = not placement.ours
        self.placement = placement
        self.era = era
        self.ledger = ledger
        self.metrics = metrics
        self.hookless = frozenset(hookless)
        self._waiter = waiter
        self._action = action
        self._clock = clock
        self._spans = spans
        self._decided = decided
        self._hooked: dict[str, set[str]] = {}
        self._distrusted: set[str] = set()
        self._step: _Step | None = None
        self._unrecorded: _Step | None = None
        self._uncounted: list[Wait] = []
        self._closing: list[Settled] = []
        self._steps = 0
        self._covered: list[int] | None = None
        self.idle = False
        self._idle_step: tuple[StepNotes, str] | None = None
        self.news = False
        self._reported: dict[str, tuple[str, bool]] = {}

    # The order of a step.

    @property
    def at_rest(self) -> bool:
        """Whether no read is known, and of no earlier step anything is still to be said."""
        told = not (self._uncounted or self._unrecorded or self._closing or self._reported)
        return told and not self.ledger

    def begin_idle_step(self, notes: StepNotes, mode: str) -> None:
        """As `begin_step`, at rest, when the scheduler side has nothing to tell."""
        self._steps += 1
        self._step = None
        self._idle_step = (notes, mode)
        self.armed = self._armed_at_rest
        self.idle = True

    def end_idle_step(self) -> None:
        """An idle step has ended, and nothing was posted in it: count it, once."""
        if self._idle_step is not None:
            notes, mode = self._idle_step
            self._idle_step = None
            # As `runs_forward`, without a call in every step.
            if notes.scheduled is None or notes.scheduled:
                self.metrics.step(mode, reads=False)

    def begin_step(self, notes: StepNotes, mode: str) -> Outcome | None:
        """A step begins: its metadata were bound, nothing has run.

        Returns how a wait ended, None if there was nothing to wait for.
        """
        started = self._clock()
        self._count_waits()
        if self._unrecorded is not None:
            self._record_step(self._unrecorded)
        self._steps += 1
        step = self._step = _Step(notes, mode, started)
        self._idle_step = None
        self.idle = False
        self.armed = self._armed_at_rest
        if notes.ended:
            self.finish(notes.ended)
        if notes.held:
            self.ledger.hold(frozenset(notes.held))
        if notes.traceparents and self._spans is not None:
            self._spans.know(notes.traceparents)
        self._own(started, 0.0)
        if notes.loads_before_forward is False and self.ledger:
            return self.before_forward(step.mode)
        return None

    def wake(self, at: float, *, after_forward: bool) -> None:
        """Reads are about to be posted, at a time of the clock: the step is idle no more."""
        self.idle = False
        if self._idle_step is None:
            return
        notes, mode = self._idle_step
        self._step = _Step(notes, mode, started_at=at)
        if after_forward:
            self._step.ended, self._step.ended_at = True, at
            self.end_idle_step()
        self._idle_step = None

    def posted(
        self,
        request_id: str,
        remote: str,
        reads: Iterable[tuple[int, str, Status]],
        nbytes: int,
        started_at: float,
        post_s: float,
    ) -> None:
        """The reads of one request were posted, from `started_at` on, in `post_s` seconds."""
        request = self.ledger.post(request_id, remote, reads, nbytes=nbytes, posted_at=started_at)
        if request is None:
            return
        step = self._step
        if self._spans is not None:
            waits = self.placement is not Placement.GATE and step is not None and not step.ended
            self._spans.posted(request, in_step=waits)
        self.metrics.posted(request, post_s)
        self.news = True
        if step is not None and step.ended and request_id in (step.notes.scheduled or ()):
            # Its forward has run without what is only being read now.
            only = {request_id: 1}
            self._record(step, self.ledger.judge(full_graph=step.full_graph, scheduled=only))

    def before_forward(self, mode: str) -> Outcome | None:
        """The last moment before the forward: look, and wait for what no layer hook will.

        Returns how a wait ended, with every read known to have failed; None if there was
        nothing to wait for and nothing has failed.
        """
        step = self._step
        if self._idle_step is not None:
            # The mode is known for certain only now, where loads come first.
            self._idle_step = (self._idle_step[0], mode)
        if step is None or step.ended or step.loads_done or not step.notes.runs_forward:
            return None
        step.loads_done = True
        step.mode = mode
        if self.placement is Placement.GATE:
            return None
        if not self.ledger.open_by_layer and not self.ledger.has_fresh:
            return None
        started, blocked_s = self._clock(), step.blocked_s
        self._reads_in(step)
        self.news = True
        layers_wait = self.placement is Placement.EVIDENCE and not step.full_graph
        scheduled = step.notes.scheduled
        self.metrics.landed(self.ledger.look_before_forward(scheduled, fresh=not layers_wait))
        outcome = self._wait(step, "step", self._due_before_forward(step))
        if failures := self.ledger.fresh_failures:
            outcome = (outcome or Outcome(0.0, 0, 0, 0))._replace(failed=failures)
        self.armed = self._layers_have_work(step)
        self._own(started, step.blocked_s - blocked_s)
        return outcome

    def at_layer(self, layer_name: str) -> Outcome | None:
        """The attention of a layer is about to run: wait for that layer's reads.

        Reads of requests that are gone are waited for too, as upstream does: they may write into
        blocks that belong to another request by now.

        Returns how a wait ended, None if there was nothing to wait for.
        """
        step = self._step
        if step is None or step.ended:
            return None
        self._hooked.setdefault(step.mode, set()).add(layer_name)
        if step.relied_on:
            step.relied_on.discard(layer_name)
        reads: Collection[Read] | None = self.ledger.open_by_layer.get(layer_name)
        if not reads:
            return None
        if step.given_up:
            reads = self._leave_out_given_up(step, reads)
        return self._wait(step, "layer", reads)

    def end_forward(self) -> None:
        """The forward has ended on the host: judge it, once.

        What was waited for is counted each time: loads may be started after the forward.
        """
        started = self._clock()
        self._count_waits()
        self.end_idle_step()
        step = self._step
        if step is None or step.ended:
            return
        self.armed = self._armed_at_rest
        step.ended = True
        step.ended_at = started
        if not step.notes.runs_forward:
            return
        if self.ledger:
            # A layer hook that was relied on and did not fire is never relied on again.
            if step.relied_on:
                self._distrusted |= step.relied_on & self.ledger.open_by_layer.keys()
            self._record(
                step,
                self.ledger.judge(full_graph=step.full_graph, scheduled=step.notes.scheduled),
            )
        if step.full_graph and step.reads:
            self.metrics.full_graph_step(protected=step.cause is None)
        self.metrics.step(step.mode, reads=step.reads)
        if step.reads:
            self.metrics.step_with_reads(started - step.started_at, step.blocked_s)
        self._own(started, 0.0)

    def fail_step(self) -> None:
        """The step fails in its forward: nobody is served from it, so there is nothing to judge."""
        step = self._step
        if step is None:
            return
        if not step.ended:
            step.ended_at = self._clock()
        step.ended = step.failed = True
        self.armed = self._armed_at_rest
        if self._unrecorded is step:
            self._record_step(step)

    @property
    def step_failed(self) -> bool:
        """Whether the step has failed, and with it whatever would leave with it."""
        return self._step is not None and self._step.failed

    def settle(self, dropped: Collection[str], *, recovers: bool) -> list[str]:
        """Upstream has cleaned up: close the accounts it dropped and tell who was exposed.

        Args:
            dropped: Requests that upstream no longer tracks.
            recovers: Whether it has reported the blocks of those whose reads did not all land.

        Returns:
            Those of `dropped` with reads in flight.
        """
        step = self._step
        told = step is None or not step.exposures
        if told and not (dropped or self.ledger or self._unrecorded or self._closing):
            return []
        started = self._clock()
        recovered = set()
        aborted = []
        closed = []
        for request_id in dropped:
            settled = self.ledger.settle(request_id, recovers=recovers)
            if settled is not None:
                self._account(settled)
                closed.append(settled)
                if settled.aborted:
                    aborted.append(request_id)
                if recovers and not settled.complete:
                    recovered.add(request_id)
        self._count_late(self.ledger.late_landings(started))
        if step is not None:
            self._tell_exposures(step, recovered)
        if self._unrecorded is not None and self._unrecorded.ended:
            self._record_step(self._unrecorded)
        if self._spans is not None:
            self._closing += closed
            if self._closing:
                self.close_spans()
        self._own(started, 0.0)
        return aborted

    def _tell_exposures(self, step: _Step, recovered: Collection[str]) -> None:
        """Say who was exposed, and what becomes of them."""
        for exposure in step.exposures:
            action = self._action if exposure.request_id in recovered else "reported"
            self._expose(exposure, action)
        step.exposed += tuple(exposure.request_id for exposure in step.exposures)
        step.exposures = ()

    def close_spans(self) -> None:
        """Record the reads whose accounts were closed and of which all is known."""
        closing, self._closing = self._closing, []
        for settled in closing:
            if not self._decided(settled.request.request_id):
                self._closing.append(settled)
                continue
            errors = _codes(settled.failed)
            outcome = "failed" if errors else "aborted" if settled.aborted else "landed"
            if self._spans is not None:
                self._spans.read_ended(settled.request, outcome, errors)

    def let_run(self, request_ids: Collection[str]) -> None:
        """The guard has seen all reads of these requests land."""
        self.metrics.landed(self.ledger.look_at(request_ids))
        if self._spans is not None:
            self._spans.let_run(request_ids)

    def given_up(self, request_id: str, cause: str, layers: tuple[int, ...]) -> None:
        """The guard does not let a request run on what its reads have brought."""
        # Before the scheduler side has said so: it holds the blocks of whoever is given up.
        self.ledger.hold((request_id,))
        self._expose(Exposure(request_id, cause, certain=True, layers=layers), self._action)
        self.news = True

    def finish(self, request_ids: Collection[str]) -> None:
        """The scheduler has finished or preempted these requests: their blocks are free."""
        # Before their reads are looked at: a span ends with the wait that saw the last one land.
        self._count_waits()
        landed = self.ledger.finish(request_ids)
        if self._spans is not None:
            self._spans.forget(request_ids)
        if landed:
            self.metrics.landed(landed)
            self.news = True

    # Upstream's own waits, when they are left alone.

    def upstream_waited_at_layer(self, layer_name: str, waited_s: float) -> None:
        """Upstream's own barrier of one layer has returned after `waited_s` seconds."""
        step = self._step
        reads = self.ledger.open_by_layer.get(layer_name)
        if step is None or step.full_graph or not reads or self.era is Era.STEP:
            return
        self._observe(step, "layer", list(reads), waited_s)

    def upstream_starts_step_wait(self) -> None:
        """Upstream's own step barrier begins; `upstream_covers` names what it waits for."""
        self._covered = []

    def upstream_waited_before_forward(self, waited_s: float) -> None:
        """Upstream's own step barrier has returned, or raised, after `waited_s` seconds."""
        covered, self._covered = self._covered, None
        step = self._step
        if step is None or not covered:
            return
        known = {id(read.status): read for read in self.ledger.open_reads()}
        self._reads_in(step)
        reads = [known[key] for key in covered if key in known]
        if reads:
            self._observe(step, "step", reads, waited_s)

    def upstream_covers(self, statuses: Iterable[Status]) -> None:
        """Upstream's step barrier waits for these statuses."""
        if self._covered is not None:
            self._covered.extend(map(id, statuses))

    # What leaves the worker.

    def take_exposed(self) -> dict[str, tuple[str, bool]]:
        """The requests that were exposed and answered all the same, why, and whether certainly."""
        reported, self._reported = self._reported, {}
        return reported

    def gauge(self) -> None:
        """Set the gauges to what is in flight now."""
        oldest = self.ledger.oldest_posted_at()
        age_s = 0.0 if oldest is None else self._clock() - oldest
        self.metrics.in_flight(self.ledger.in_flight, age_s)

    def _due_before_forward(self, step: _Step) -> list[Read]:
        """The reads that must be waited for now, because no layer hook will.

        Left out are requests that are gone, since nobody attends to what they read, and reads that
        a barrier has given up before: upstream too waits here only for what this step has posted.
        """
        match self.placement:
            case Placement.STEP:
                return self.ledger.due()
            case Placement.EVIDENCE if step.full_graph:
                return self.ledger.due()
            case Placement.EVIDENCE:
                step.relied_on = self._relied_on(step)
                layers: Collection[str] = self.ledger.open_by_layer.keys() - step.relied_on
            case Placement.LAYER:
                layers = self.hookless
            case _:
                return []
        return [
            read
            for layer_name in layers
            for read in self.ledger.open_by_layer.get(layer_name, ())
            if not read.request.gone and read.missed is None
        ]

    def _relied_on(self, step: _Step) -> set[str]:
        """The layers whose hooks have fired in this kind of step, and never failed to."""
        hooked = self._hooked.get(step.mode, set())
        known = hooked & self.ledger.open_by_layer.keys()
        return known - self._distrusted - self.hookless

    def _layers_have_work(self, step: _Step) -> bool:
        """Whether layer hooks must be listened to: to wait there, or to learn which fire."""
        match self.placement:
            case Placement.UPSTREAM:
                return True
            case Placement.LAYER:
                return bool(self.ledger.open_by_layer) and not step.full_graph
            case Placement.EVIDENCE:
                learning = step.mode not in self._hooked
                return (learning or bool(self.ledger.open_by_layer)) and not step.full_graph
            case _:
                return False

    def _leave_out_given_up(self, step: _Step, reads: Collection[Read]) -> list[Read]:
        """Wait no more in this step for requests that a barrier has given up: they are exposed."""
        kept = []
        for read in reads:
            if read.request.request_id in step.given_up:
                read.missed = "timeout"
            else:
                kept.append(read)
        return kept

    def _wait(self, step: _Step, site: str, reads: Collection[Read]) -> Outcome | None:
        if not reads:
            return None
        covered = list(reads)
        began = self._clock()
        outcome = self._waiter.wait(covered)
        self._waited(step, (site, covered, outcome, began + outcome.waited_s))
        if outcome.in_flight:
            if self.placement is not Placement.LAYER:
                step.given_up |= {
                    read.request.request_id for read in covered if read.state is ReadState.IN_FLIGHT
                }
            logger.warning(
                "MoRIIO READ barrier (%s) timed out after %.1f s with %d of %d reads in flight.",
                site,
                outcome.waited_s,
                outcome.in_flight,
                len(covered),
            )
        return outcome

    def _observe(self, step: _Step, site: str, covered: list[Read], waited_s: float) -> None:
        """Say what a wait of upstream's has achieved."""
        landed = self.ledger.look(covered)
        failed = sum(read.state is ReadState.FAILED for read in covered)
        pending = [read for read in covered if read.state is ReadState.IN_FLIGHT]
        # Upstream returns before its deadline with reads in flight only when another has failed.
        gave_up = waited_s < self._waiter.timeout_s
        for read in pending:
            read.missed = "gave_up" if gave_up else "timeout"
        in_flight = 0 if gave_up else len(pending)
        outcome = Outcome(waited_s, landed, failed, in_flight)
        self._waited(step, (site, covered, outcome, self._clock()))

    def _waited(self, step: _Step, wait: Wait) -> None:
        """A barrier has returned: little is done before the forward goes on."""
        _, _, outcome, _ = wait
        step.blocked_s += outcome.waited_s
        self.news = True
        self._uncounted.append(wait)
        bad = outcome.failed or outcome.in_flight
        if bad or outcome.waited_s >= SHORT_WAIT_S:
            self._count_waits()

    def _count_waits(self) -> None:
        """Count the waits since the last call, and record them."""
        if not self._uncounted:
            return
        waits, self._uncounted = self._uncounted, []
        examples = None if self._spans is None else self._spans.waited(waits)
        for (site, covered, outcome, _), example in zip(
            waits, examples or repeat(None), strict=False
        ):
            self.metrics.barrier(site, outcome, example)
            if site == "layer":
                self.metrics.layer_waited(covered[0].layer, outcome.waited_s)

    def _record(self, step: _Step, verdict: Verdict) -> None:
        self.metrics.landed(verdict.landed)
        if verdict.cause is None:
            return
        self.news = True
        step.exposures += tuple(verdict.exposures)
        if verdict.exposures and self._spans is not None:
            self._unrecorded = step
        self.metrics.unlanded(verdict)
        if step.cause is None:
            step.cause = verdict.cause
            self.metrics.unprotected(verdict.cause, certain=verdict.certain)

    def _account(self, settled: Settled) -> None:
        self.news = True
        metrics = self.metrics
        metrics.landed(settled.landed)
        metrics.failed(_codes(settled.failed))
        if settled.aborted:
            metrics.aborted(settled.aborted)
        if settled.complete:
            metrics.request_done(settled.request, self._clock() - settled.request.posted_at)

    def _reads_in(self, step: _Step) -> None:
        """A step has reads that it waits for, or might have to."""
        step.reads = True
        if self._spans is not None:
            self._unrecorded = step

    def _record_step(self, step: _Step) -> None:
        """Record a step that had reads; one that never ended was failed by vLLM."""
        self._count_waits()
        self._unrecorded = None
        if self._spans is None:
            return
        self._spans.step(
            number=self._steps,
            started_at=step.started_at,
            ended_at=self._clock() if step.ended_at is None else step.ended_at,
            mode=step.mode,
            blocked_s=step.blocked_s,
            exposed=step.exposed,
            cause=step.cause,
            failed=step.failed or step.ended_at is None,
        )

    def _count_late(self, late: LateReads) -> None:
        if late.late or late.held or late.failed or late.expired:
            self.news = True
            self.metrics.late(late.late, quarantined=False)
            self.metrics.late(late.held, quarantined=True)
            self.metrics.landed(late.landed)
            self.metrics.aborted(late.expired)
            self.metrics.failed(_codes(late.failed))

    def _own(self, started: float, waited_s: float) -> None:
        """Count our own time since `started`, without the time waited for reads."""
        own_s = self._clock() - started - waited_s
        if own_s > 0:
            self.metrics.overhead(own_s)

    def _expose(self, exposure: Exposure, action: str) -> None:
        self.metrics.exposed(exposure, action)
        if self._spans is not None:
            self._spans.exposed(exposure, action)
        if action == "reported":
            self._reported[exposure.request_id] = (exposure.cause, exposure.certain)
        logger.warning(
            "moriio_exposure %s",
            json.dumps(
                {
                    "request_id": exposure.request_id[:ID_LIMIT],
                    "step": self._steps,
                    "cause": exposure.cause,
                    "certainty": certainty(certain=exposure.certain),
                    "layers": exposure.layers,
                    "action": action,
                }
            ),
        )


def _codes(reads: Iterable[Read]) -> list[str]:
    """The names of mori's status codes of failed reads."""
    names = []
    for read in reads:
        code = getattr(read.status, "Code", None)
        value = code() if code is not None else None
        names.append(str(getattr(value, "name", value)))
    return names
