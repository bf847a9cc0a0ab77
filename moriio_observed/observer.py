"""One decode worker's view of its forward steps: what was read, waited for and consumed.

The observer is told what upstream does, in the order of a step:

    begin_step → posted … → before_forward → at_layer … → end_forward → settle

``start_load_kv`` may also come after the forward (vLLM 0.29 and newer, when no read is due); then
``end_forward`` comes first and what is posted feeds no attention of this step. The observer waits
where the effective barrier stands, asks the ledger for the verdict of the step, and counts.
It knows no vLLM: upstream's names end in ``upstream.py``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from moriio_observed.barrier import Era, Outcome, Placement, Waiter
from moriio_observed.log import get_logger
from moriio_observed.reads import Exposure, Read, ReadLedger, ReadState, Settled, Status, Verdict
from moriio_observed.telemetry.read_metrics import ReadMetrics, certainty

__all__ = ["Dropped", "ReadObserver", "StepNotes"]

logger = get_logger(__name__)

ID_LIMIT = 512
"""Longest request id written to the log, characters."""

FULL = "FULL"


@dataclass(frozen=True, slots=True)
class StepNotes:
    """What the scheduler side knows of a step.

    Attributes:
        scheduled: Tokens per request in this step; None if unknown.
        loads_before_forward: Whether ``start_load_kv`` precedes the forward; None if unknown
            (then it is taken to).
    """

    scheduled: Mapping[str, int] | None = None
    loads_before_forward: bool | None = None

    @property
    def runs_forward(self) -> bool:
        """Whether a forward runs at all in this step."""
        return self.scheduled is None or bool(self.scheduled)


@dataclass(frozen=True, slots=True)
class Dropped:
    """A request that upstream no longer tracks.

    Attributes:
        request_id: The request.
        done: All its reads landed; otherwise one failed, or they were aborted.
        reported: Its blocks were handed to the scheduler as load errors.
    """

    request_id: str
    done: bool = False
    reported: bool = False


@dataclass(slots=True, eq=False)
class _Step:
    notes: StepNotes
    mode: str
    started_at: float
    ended: bool = False
    loads_done: bool = False
    reads: bool = False
    blocked_s: float = 0.0
    verdict: Verdict | None = None
    given_up: set[str] = field(default_factory=set)

    @property
    def full_graph(self) -> bool:
        return self.mode == FULL


class ReadObserver:
    """Watches the reads of one decode worker and keeps the barrier.

    Args:
        placement: The effective barrier.
        era: Which barrier upstream has.
        ledger: The reads.
        waiter: How to wait for them.
        metrics: Where events are counted.
        action: What becomes of a request whose blocks are reported as load errors
            ("recomputed" or "failed").
        hookless: Names of layers for which no layer hook ever fires (recurrent state).
        clock: A monotonic clock, seconds.

    Attributes:
        armed: Whether the layer hook has anything to do. The one thing a step without reads
            looks at, once per layer.
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
    ) -> None:
        self.armed = False
        self.placement = placement
        self.era = era
        self.ledger = ledger
        self.metrics = metrics
        self.hookless = frozenset(hookless)
        self._waiter = waiter
        self._action = action
        self._clock = clock
        self._hooked: set[str] = set()
        self._step: _Step | None = None
        self._steps = 0
        self._covered: list[int] | None = None
        self._news = False

    # The order of a step.

    def begin_step(self, notes: StepNotes, mode: str) -> None:
        """A step begins: its metadata were bound, nothing has run."""
        started = self._clock()
        self._steps += 1
        self._step = _Step(notes, mode, started)
        if notes.loads_before_forward is False and notes.runs_forward and self.ledger:
            self.before_forward(mode)
        self.metrics.overhead(self._clock() - started)

    def posted(
        self,
        request_id: str,
        remote: str,
        reads: Iterable[tuple[int, str, Status]],
        *,
        nbytes: int,
        started_at: float,
        post_s: float,
    ) -> None:
        """The reads of one request were posted, from `started_at` on, in `post_s` seconds."""
        request = self.ledger.post(request_id, remote, reads, nbytes=nbytes, posted_at=started_at)
        if request is not None:
            self.metrics.posted(request, post_s)
            self._news = True

    def before_forward(self, mode: str) -> Outcome | None:
        """The last moment before the forward: look, and wait for what no layer hook will.

        Returns how a wait ended, None if there was nothing to wait for.
        """
        step = self._step
        if step is None or step.ended or step.loads_done or not step.notes.runs_forward:
            return None
        step.loads_done = True
        step.mode = mode
        if not self.ledger.open_by_layer and not self.ledger.has_fresh:
            return None
        step.reads = True
        self._news = True
        layers_wait = self.placement is Placement.EVIDENCE and not step.full_graph
        self.metrics.landed(self.ledger.look_before_forward(fresh=not layers_wait))
        outcome = self._wait(step, "step", self._due_before_forward(step))
        self.armed = not step.full_graph and self.placement in (
            Placement.EVIDENCE,
            Placement.LAYER,
            Placement.UPSTREAM,
        )
        return outcome

    def at_layer(self, layer_name: str) -> Outcome | None:
        """The attention of a layer is about to run: wait for that layer's reads.

        Returns how a wait ended, None if there was nothing to wait for.
        """
        step = self._step
        if step is None or step.ended:
            return None
        self._hooked.add(layer_name)
        reads: Collection[Read] = self.ledger.open_by_layer.get(layer_name, {})
        if step.given_up:
            reads = [read for read in reads if read.request.request_id not in step.given_up]
        return self._wait(step, "layer", reads)

    def end_forward(self) -> None:
        """The forward has ended on the host: judge it, once."""
        step = self._step
        if step is None or step.ended:
            return
        started = self._clock()
        self.armed = False
        step.ended = True
        if not step.notes.runs_forward:
            return
        if self.ledger:
            verdict = self.ledger.judge(full_graph=step.full_graph, scheduled=step.notes.scheduled)
            self._record(step, verdict)
        self.metrics.step(step.mode, reads=step.reads)
        if step.reads:
            self.metrics.step_with_reads(started - step.started_at, step.blocked_s)
        self.metrics.overhead(self._clock() - started)

    def settle(self, dropped: Iterable[Dropped]) -> None:
        """Upstream has cleaned up: close the accounts it dropped and tell who was exposed."""
        started = self._clock()
        actions: dict[str, str] = {}
        for item in dropped:
            settled = self.ledger.settle(item.request_id, done=item.done)
            if settled is not None:
                self._account(settled, done=item.done)
            if item.reported:
                actions[item.request_id] = self._action
        late = self.ledger.late_landings(started)
        if late.late or late.failed or late.expired:
            self._news = True
            self.metrics.late(late.late)
            self.metrics.landed(late.landed)
            self.metrics.aborted(late.expired)
            self.metrics.failed(_codes(late.failed))
        step = self._step
        if step is not None and step.verdict is not None:
            for exposure in step.verdict.exposures:
                self._expose(exposure, actions.get(exposure.request_id, "reported"))
            step.verdict = None
        self.metrics.overhead(self._clock() - started)

    def finish(self, request_ids: Collection[str]) -> None:
        """The scheduler has finished these requests: they take part in no further step."""
        landed = self.ledger.finish(request_ids)
        if landed:
            self.metrics.landed(landed)
            self._news = True

    # Upstream's own waits, when they are left alone.

    def upstream_waited_at_layer(self, layer_name: str, waited_s: float) -> None:
        """Upstream's own barrier of one layer has returned after `waited_s` seconds."""
        step = self._step
        if step is None or step.ended:
            return
        self._hooked.add(layer_name)
        reads = self.ledger.open_by_layer.get(layer_name)
        if reads and self.era is not Era.STEP:
            self._observe(step, "layer", list(reads), waited_s)

    @contextmanager
    def upstream_waits_before_forward(self) -> Iterator[None]:
        """Around upstream's own step barrier; `upstream_covers` names what it waits for."""
        covered: list[int] = []
        self._covered = covered
        started = self._clock()
        try:
            yield
        finally:
            self._covered = None
            step = self._step
            if step is not None and covered:
                known = {id(read.status): read for read in self.ledger.open_reads()}
                reads = [known[key] for key in covered if key in known]
                step.reads = True
                self._observe(step, "step", reads, self._clock() - started)

    def upstream_covers(self, statuses: Iterable[Status]) -> None:
        """Upstream's step barrier waits for these statuses."""
        if self._covered is not None:
            self._covered.extend(map(id, statuses))

    # What leaves the worker.

    def take_news(self) -> bool:
        """Whether something happened since the last call that should leave at once."""
        news, self._news = self._news, False
        return news

    def gauge(self) -> None:
        """Set the gauges to what is in flight now."""
        oldest = self.ledger.oldest_posted_at()
        age_s = 0.0 if oldest is None else self._clock() - oldest
        self.metrics.in_flight(self.ledger.in_flight, age_s)

    def _due_before_forward(self, step: _Step) -> list[Read]:
        """The reads that must be waited for now, because no layer hook will."""
        match self.placement:
            case Placement.STEP:
                return list(self.ledger.open_reads())
            case Placement.EVIDENCE:
                if step.full_graph:
                    return list(self.ledger.open_reads())
                hooked = self._hooked
                return [read for read in self.ledger.open_reads() if read.layer_name not in hooked]
            case Placement.LAYER:
                return [
                    read
                    for layer_name in self.hookless
                    for read in self.ledger.open_by_layer.get(layer_name, ())
                ]
            case _:
                return []

    def _wait(self, step: _Step, site: str, reads: Collection[Read]) -> Outcome | None:
        if not reads:
            return None
        covered = list(reads)
        outcome = self._waiter.wait(covered)
        self._count_wait(step, site, covered, outcome)
        if outcome.timed_out:
            if self.placement is not Placement.LAYER:
                step.given_up.update(
                    read.request.request_id for read in covered if read.state is ReadState.IN_FLIGHT
                )
            logger.warning(
                "MoRIIO READ barrier (%s) timed out after %.1f s with %d of %d reads in flight; "
                "the forward runs without them.",
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
        self._count_wait(step, site, covered, Outcome(waited_s, landed, failed, in_flight))

    def _count_wait(self, step: _Step, site: str, covered: list[Read], outcome: Outcome) -> None:
        step.blocked_s += outcome.waited_s
        self._news = True
        self.metrics.barrier(site, outcome)
        if site == "layer":
            self.metrics.layer_waited(covered[0].layer, outcome.waited_s)

    def _record(self, step: _Step, verdict: Verdict) -> None:
        step.verdict = verdict
        self.metrics.landed(verdict.landed)
        if step.full_graph and step.reads:
            self.metrics.full_graph_step(protected=verdict.cause is None)
        if verdict.cause is None:
            return
        self._news = True
        self.metrics.unprotected(verdict)
        if verdict.cause == "no_barrier":
            # A layer hook that was counted on did not fire: learn again which ones do.
            self._hooked.clear()

    def _account(self, settled: Settled, *, done: bool) -> None:
        self._news = True
        metrics = self.metrics
        metrics.landed(settled.landed)
        metrics.failed(_codes(settled.failed))
        if settled.aborted:
            metrics.aborted(settled.aborted)
        if settled.late:
            metrics.late(settled.late)
        if done:
            metrics.request_done(settled.request, self._clock() - settled.request.posted_at)

    def _expose(self, exposure: Exposure, action: str) -> None:
        self.metrics.exposed(exposure, action)
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
