"""What a decode engine's scheduler side claims of P's KV, and the blocks it keeps from reuse.

With a guard it claims only tokens that a read will really fill, and has the scheduler wait for
them; what was not or cannot be read in time is computed here. With ``guard: report`` it claims what
upstream claims, and tells what will go wrong.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from moriio_observed import upstream
from moriio_observed.lease import Clocks, Lease
from moriio_observed.log import get_logger
from moriio_observed.observer import ID_LIMIT
from moriio_observed.quarantine import BlockPool, Quarantine
from moriio_observed.spread import Spread
from moriio_observed.telemetry.aggregate import Aggregate
from moriio_observed.telemetry.read_metrics import certainty
from moriio_observed.transfers import UsedTransfers

__all__ = ["Claims"]

logger = get_logger(__name__)

STALE = ("lease", "reused")
"""Why a read would come too late: P's lease has ended, or the transfer is another request's."""

_NOT_WATCHED = "not watched"
"""Why nothing is read any more after an error of ours in a worker, which has been told."""
_GIVEN_UP = "given up"
"""Why a request asks again whose reads have not landed, which has been told."""

_NO_ROOM = "no room"
"""Why nothing is read while a moved request cannot have its blocks: vLLM keeps as many as that one
needs from whoever waits for reads, and none from whoever is computed here."""

LEASE_MARGIN_S = 0.5
"""Taken off each lease, seconds: for the least delay that no clock shows, and a step's queueing."""


@dataclass(slots=True, eq=False)
class _Reading:
    request: Any
    blocks: list[int]
    ranks_left: int
    overdue: bool = False


@dataclass(frozen=True, slots=True)
class _Refusal:
    cause: str
    tokens: int


class Claims:
    """The claims of one decode engine in READ mode.

    Args:
        scheduler: Upstream's scheduler side.
        aggregate: Where it counts.
        guarded: Whether tokens that no read will fill are computed here instead of claimed.
        waits: Whether the scheduler is to wait for reads before it runs their request.
        ranks: How many workers read for each request.
        block_size: Tokens in a block.
        limit_s: Seconds for which blocks are kept from reuse at most.
        clocks: How old leases are.
        clock: A monotonic clock, seconds.

    Attributes:
        guarded: As given.
        waits: As given.
        news: Whether something was counted that should leave with the next step.
    """

    def __init__(
        self,
        scheduler: Any,
        aggregate: Aggregate,
        *,
        guarded: bool,
        waits: bool,
        ranks: int,
        block_size: int,
        limit_s: float,
        clocks: Clocks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.guarded = guarded
        self.news = False
        self._scheduler = scheduler
        self._aggregate = aggregate
        self.waits = waits
        self._ranks = ranks
        self._block_size = block_size
        self._clocks = clocks or Clocks()
        self._quarantine = Quarantine(limit_s, clock)
        self._spread = Spread(self._quarantine.evict)
        self._transfers = UsedTransfers()
        self._broken = False
        self._reading: dict[str, _Reading] = {}
        self._computed: dict[str, int] = {}
        self._refused: dict[str, _Refusal] = {}
        self._lease_left: dict[str, float] = {}
        self._held: list[str] = []
        self._was_read: set[str] = set()
        # Without blocks: those to be moved to fresh ones; of them those for whom held ones leave
        # too few; and all for whom they do, of whom that was said.
        self._moved: set[str] = set()
        self._stuck: set[str] = set()
        self._put_off: set[str] = set()
        # With all their KV, and not run yet; and whether somebody has stepped aside for them.
        self._arrived: set[str] = set()
        self._queue_stands = False
        self._told_blocks: int | None = None
        self._tell_quarantine()

    @property
    def holds(self) -> bool:
        """Whether blocks are kept from reuse."""
        return bool(self._quarantine)

    def bind(self, pool: BlockPool) -> None:
        """Learn the pool of blocks from vLLM."""
        self._quarantine.pool = pool

    # What happens to a request, in this order.

    def arrived(self, request: Any) -> None:
        """A request has come: the earliest moment at which its lease can be looked at."""
        lease = self._lease(request)
        if lease is not None:
            self._clocks.arrived(lease)

    def steps_aside(self, request: Any) -> bool:
        """Whether a request that has no blocks yet lets others pass for this time.

        vLLM goes no further down its queue than to the first that finds no blocks. So one is put
        off that cannot have them, before held ones are back, whatever else ends. And so is one,
        with all that come after it, that finds none now while the KV of others has arrived: those
        are run, and then it has its turn.
        """
        if not self.waits:
            return False
        request_id = request.request_id
        self._stuck.discard(request_id)
        needed = upstream.blocks_needed(request, self._block_size)
        if self._quarantine and needed > self._quarantine.left:
            if request_id in self._moved:
                self._stuck.add(request_id)
            self._tell_put_off(request_id, needed)
            return True
        self._queue_stands = self._queue_stands or (
            bool(self._arrived) and needed > self._quarantine.free
        )
        return self._queue_stands

    def claim(self, request: Any, computed: int, external: int) -> tuple[int, bool]:
        """What to claim where upstream claims `external` tokens beyond `computed` ones.

        Returns how many tokens, and whether the scheduler is to wait for them. May be asked again
        for a request that is not allocated any blocks yet.
        """
        request_id = request.request_id
        self._refused.pop(request_id, None)
        if external <= 0 or not self.guarded:
            return external, False
        if cause := self._why_not(request):
            self._refused[request_id] = _Refusal(cause, external)
            return 0, False
        if not self.waits:
            return external, False
        self._computed[request_id] = computed // self._block_size
        upstream.keep_prompt(request, self._block_size)
        tokens = upstream.prompt_on_remote(request, computed, self._block_size)
        return tokens, tokens > 0

    def before_allocation(self, request: Any) -> None:
        """Upstream is about to decide what it reads, and to release what it does not."""
        refusal = self._refused.get(request.request_id)
        if refusal is not None and refusal.cause in STALE:
            # A release would be for blocks that P has released, or reaped, already.
            upstream.will_read_nothing(request)
        else:
            self.before_release(request)

    def before_release(self, request: Any) -> None:
        """Upstream releases the transfer of a request that ends, or is computed, without a read.

        From then on nobody may read it. With a guard it stays as it is while another request reads
        it, whose blocks on P they are.
        """
        if upstream.will_be_read(request):
            transfer = self._transfer(request, self._lease(request))
            first = self._transfers.first(transfer, request.request_id)
            if self.guarded and not first:
                upstream.will_read_nothing(request)

    def allocated(self, request: Any, blocks: Any, external: int) -> None:
        """A request was allocated its blocks, `external` tokens of which were claimed."""
        request_id = request.request_id
        self._has_blocks(request_id)
        self._spread.started(request_id)
        computed = self._computed.pop(request_id, 0)
        refusal = self._refused.pop(request_id, None)
        if refusal is not None:
            self._tell_refusal(request_id, refusal)
        elif upstream.claims_phantom(self._scheduler, request, external):
            self._tell_phantom(request_id, upstream.phantom_cause(request), external, "reported")
            self._spread.spoil(request_id, upstream.flat(blocks.get_block_ids()))
        elif external > 0:
            self._note_reading(request, upstream.first_blocks(blocks, computed))
        if not self.waits:
            self._spread.uses(request_id, lambda: upstream.flat(blocks.get_block_ids()))

    def finished(self, request: Any, block_ids: Any) -> None:
        """A request has ended: its blocks are about to be free."""
        request_id = request.request_id
        self._refused.pop(request_id, None)
        self._computed.pop(request_id, None)
        self._was_read.discard(request_id)
        self._arrived.discard(request_id)
        self._has_blocks(request_id)
        self._spread.finished(request_id, lambda: upstream.flat(block_ids))
        if (reading := self._reading.get(request_id)) is not None:
            self._hold(reading)

    def preempted(self, request_ids: Collection[str]) -> None:
        """Requests have lost their blocks, perhaps to others already."""
        for request_id in request_ids:
            self._moved.discard(request_id)
            # One whose blocks are held has been moved: it has lost others.
            if request_id not in self._quarantine:
                self._forget(request_id)

    def hear(self, report: upstream.WorkerReport | None, arrived: Collection[str]) -> None:
        """Workers have told what has settled, and for which requests the wait is over."""
        if report is not None:
            self._broken = self._broken or report.broken
            for request_id in report.overdue:
                self._note_overdue(request_id)
            for request_id, (cause, certain) in report.exposed.items():
                self._tell_sharers(request_id, cause, certain=certain)
            for request_id, ranks in report.settled.items():
                self._settle(request_id, ranks)
        self._arrived.update(self._was_read.intersection(arrived))
        for request_id in arrived:
            reading = self._reading.get(request_id)
            moved = reading is None or request_id in self._quarantine
            if reading is not None and not moved and not upstream.is_over(reading.request):
                # Given up with a read in flight: to be computed elsewhere, not under it.
                self._hold(reading)
                self._moved.add(request_id)
                self._arrived.discard(request_id)
                upstream.restart(reading.request)
        if self._broken and not self.waits:
            # Nobody will say when their reads have ended.
            for request_id in list(self._reading):
                self._settle(request_id, self._ranks)
        self._tell_quarantine()

    def expire(self) -> None:
        """Give back what has been held for too long."""
        if not self._quarantine:
            return
        for request_id in self._quarantine.expire():
            self._forget(request_id)
            self._aggregate.counter("quarantine_expired_total").inc()
            self.news = True
        self._tell_quarantine()

    def scheduled(self, request_ids: Collection[str]) -> None:
        """A step has been put together, of these requests."""
        self._queue_stands = False
        if self._arrived:
            self._arrived.difference_update(request_ids)

    def lose_notes(self) -> None:
        """Workers are no longer told for how long what is read is good: a guard has no more read.

        Without one nothing goes by that, and what is read is held as before.
        """
        self._broken = self._broken or self.waits

    def give_up(self) -> None:
        """Hold nothing any more: nobody will say when it may be given back.

        With a guard what is held stays so: a block too few is better than a wrong answer.
        """
        self._broken = True
        if self.waits:
            return
        self._quarantine.release_all()
        self._tell_quarantine()

    # For the workers.

    def take_notes(self) -> tuple[dict[str, float], list[str]]:
        """For how long what is read now is good, and whose blocks are held from now on."""
        notes = self._lease_left, self._held
        self._lease_left, self._held = {}, []
        return notes

    def _why_not(self, request: Any) -> str | None:
        if not upstream.will_be_read(request):
            cause = upstream.phantom_cause(request)
            given_up = cause == "no_params" and request.request_id in self._was_read
            return _GIVEN_UP if given_up else cause
        if self._broken:
            return _NOT_WATCHED
        if self._stuck and self._quarantine:
            return _NO_ROOM
        return self._staleness(request, self._lease(request))

    def _staleness(self, request: Any, lease: Lease | None) -> str | None:
        if not self._transfers.first(self._transfer(request, lease), request.request_id):
            return "reused"
        if lease is not None and self._left(lease) <= 0:
            return "lease"
        return None

    @staticmethod
    def _lease(request: Any) -> Lease | None:
        return Lease.read(upstream.params_of(request))

    @staticmethod
    def _transfer(request: Any, lease: Lease | None) -> str:
        """What is read for a request; somebody may use a name again for another prefill."""
        transfer = upstream.transfer_of(request)
        return transfer if lease is None else f"{transfer} {lease.clock} {lease.issued_mono}"

    def _left(self, lease: Lease) -> float:
        return self._clocks.left(lease) - LEASE_MARGIN_S

    def _note_reading(self, request: Any, computed: Collection[int]) -> None:
        request_id = request.request_id
        self._was_read.add(request_id)
        lease = self._lease(request)
        if lease is None:
            self._aggregate.counter("lease_unknown_total").inc()
        else:
            self._lease_left[request_id] = self._left(lease)
        if not self.guarded and (cause := self._staleness(request, lease)):
            self._tell_stale(request_id, cause, "reported")
            self._spread.spoil(request_id)
        if self.waits:
            upstream.leave_out(self._scheduler, request_id, computed)
        blocks = upstream.blocks_to_read(self._scheduler, request_id)
        if blocks:
            self._reading[request_id] = _Reading(request, blocks, self._ranks)
            if not self.waits:
                self._spread.reading(request_id, blocks)
        self.news = True

    def _tell_sharers(self, request_id: str, cause: str, *, certain: bool) -> None:
        """A request was answered from KV that had not landed: so were those that share it."""
        for sharer in self._spread.expose(request_id):
            word = certainty(certain=certain)
            self._aggregate.counter(
                "exposed_requests_total", cause=cause, certainty=word, action="reported"
            ).inc()
            self._tell(
                "moriio_exposure",
                sharer,
                cause=cause,
                certainty=word,
                action="reported",
                shares_with=request_id[:ID_LIMIT],
            )

    def _note_overdue(self, request_id: str) -> None:
        reading = self._reading.get(request_id)
        # Each rank tells, perhaps in another step.
        if reading is not None and not reading.overdue:
            reading.overdue = True
            self._tell_stale(request_id, "lease", "prevented" if self.waits else "reported")
            if not self.waits:
                self._spread.spoil(request_id)

    def _settle(self, request_id: str, ranks: int) -> None:
        reading = self._reading.get(request_id)
        if reading is None:
            return
        reading.ranks_left -= ranks
        if reading.ranks_left <= 0:
            self._forget(request_id)
            self._quarantine.release(request_id)

    def _has_blocks(self, request_id: str) -> None:
        """A request has been given blocks, or needs none any more."""
        for waiting in (self._moved, self._stuck, self._put_off):
            waiting.discard(request_id)

    def _tell_put_off(self, request_id: str, needed: int) -> None:
        if request_id not in self._put_off:
            self._put_off.add(request_id)
            logger.warning(
                "%s waits: it needs %d blocks, and those in quarantine leave %d%s",
                request_id[:ID_LIMIT],
                needed,
                self._quarantine.left,
                "; until it has them, prompts are computed here"
                if request_id in self._stuck
                else "",
            )

    def _tell_quarantine(self) -> None:
        blocks = self._quarantine.blocks
        # Asked in every step, and nearly always as it was.
        if blocks != self._told_blocks:
            self._told_blocks = blocks
            self._aggregate.gauge("quarantined_blocks").set(blocks)
            self.news = True

    def _forget(self, request_id: str) -> None:
        """No read of a request is in flight any more, or it has lost its blocks."""
        self._reading.pop(request_id, None)
        self._spread.settled(request_id)

    def _hold(self, reading: _Reading) -> None:
        request_id = reading.request.request_id
        if request_id not in self._quarantine and self._quarantine.hold(request_id, reading.blocks):
            self._held.append(request_id)
            self.news = True

    def _tell_refusal(self, request_id: str, refusal: _Refusal) -> None:
        if refusal.cause in STALE:
            self._tell_stale(request_id, refusal.cause, "prevented")
        elif refusal.cause not in (_NOT_WATCHED, _GIVEN_UP, _NO_ROOM):
            self._tell_phantom(request_id, refusal.cause, refusal.tokens, "prevented")

    def _tell_phantom(self, request_id: str, cause: str, tokens: int, action: str) -> None:
        self._aggregate.counter("phantom_hits_total", cause=cause, action=action).inc()
        self._tell("moriio_phantom_hit", request_id, cause=cause, tokens=tokens, action=action)

    def _tell_stale(self, request_id: str, cause: str, action: str) -> None:
        self._aggregate.counter("stale_reads_total").inc()
        self._tell("moriio_stale_read", request_id, cause=cause, action=action)

    def _tell(self, event: str, request_id: str, **more: object) -> None:
        self.news = True
        told = {"request_id": request_id[:ID_LIMIT], **more}
        logger.warning("%s %s", event, json.dumps(told))
