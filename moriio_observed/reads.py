"""The ledger of reads: every READ from its posting to its end, and the verdict of a step.

A *read* is one posted RDMA READ: one layer of one request. The ledger learns of reads when
upstream posts them, of landings when somebody looks at their statuses at a moment that counts, and
of their end when upstream drops the request. At the end of a forward step it says which reads the
forward may have consumed before they had verifiably landed, why, how certain that is, and which
requests are exposed.

Nothing here knows vLLM, torch or mori: a status is any object with ``Succeeded()`` and
``Failed()``. Indexed by layer and by request, so that a step costs what changed in it.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

__all__ = [
    "CAUSES",
    "Exposure",
    "LateReads",
    "Read",
    "ReadLedger",
    "ReadState",
    "RequestReads",
    "Settled",
    "Status",
    "Verdict",
]

CAUSES = ("failed", "timeout", "gave_up", "full_graph", "no_barrier")
"""Why a read was unlanded; the first that applies names the step and the request."""

_RANK = {cause: rank for rank, cause in enumerate(CAUSES)}

LATE_LOOKS_PER_STEP = 16
"""How many reads that outlived their request are looked at in one step."""


class Status(Protocol):
    """What the ledger needs of a mori ``TransferStatus``."""

    def Succeeded(self) -> bool:  # noqa: N802  (mori's name)
        """Whether the bytes have landed."""

    def Failed(self) -> bool:  # noqa: N802  (mori's name)
        """Whether the transfer ended in an error."""


class ReadState(enum.Enum):
    """Where a read stands, as far as somebody has looked."""

    IN_FLIGHT = "in flight"
    LANDED = "landed"
    FAILED = "failed"
    ABORTED = "aborted"


_IN_FLIGHT, _LANDED = ReadState.IN_FLIGHT, ReadState.LANDED


@dataclass(slots=True, eq=False)
class Read:
    """One posted READ.

    Attributes:
        request: The reads of the same request.
        layer: Index of the layer in the model.
        layer_name: Upstream's name of that layer.
        status: mori's handle.
        state: The last state seen.
        missed: Why a barrier that covered this read returned without it, if one did.
    """

    request: RequestReads
    layer: int
    layer_name: str
    status: Status
    state: ReadState = ReadState.IN_FLIGHT
    missed: str | None = None


@dataclass(slots=True, eq=False)
class RequestReads:
    """The reads of one request.

    Attributes:
        request_id: vLLM's id of the request.
        remote: The engine the bytes come from.
        posted_at: Clock reading when the first read was posted, seconds.
        nbytes: Bytes of all its reads.
        open: Reads nobody has seen terminal yet, in posting order (a dict for its O(1) removal).
        failed: Reads seen failed.
        total: How many reads were posted.
        exposure: What the first judgement with an unlanded read said.
        gone: Whether the request takes part in no further step on these blocks.
        held: Whether the blocks are kept from reuse until these reads have ended.
    """

    request_id: str
    remote: str
    posted_at: float
    nbytes: int
    open: dict[Read, None] = field(default_factory=dict)
    failed: list[Read] = field(default_factory=list)
    total: int = 0
    exposure: Exposure | None = None
    gone: bool = False
    held: bool = False


@dataclass(frozen=True, slots=True)
class Exposure:
    """A request that took part in a step with at least one unlanded read.

    Attributes:
        request_id: vLLM's id of the request.
        cause: The first of `CAUSES` among its unlanded reads.
        certain: Whether a read was still in flight, or failed, when the forward ended.
        layers: Indices of the layers whose reads were unlanded, ascending.
    """

    request_id: str
    cause: str
    certain: bool
    layers: tuple[int, ...]


@dataclass(slots=True)
class Verdict:
    """What one forward step consumed.

    Attributes:
        unlanded: Number of reads first found unlanded in this step, by (cause, certain).
        exposures: Requests first exposed in this step.
        cause: Why the step was unprotected; None for a protected step.
        certain: Whether any of its unlanded reads certainly had not landed.
        landed: Reads first seen landed while judging.
    """

    unlanded: dict[tuple[str, bool], int] = field(default_factory=dict)
    exposures: list[Exposure] = field(default_factory=list)
    cause: str | None = None
    certain: bool = False
    landed: int = 0

    def _blame(self, cause: str, *, certain: bool) -> None:
        if self.cause is None or _RANK[cause] < _RANK[self.cause]:
            self.cause = cause
        self.certain = self.certain or certain


class Settled(NamedTuple):
    """How the reads of a request that upstream dropped had ended.

    Attributes:
        request: The request.
        landed: Reads first seen landed now.
        failed: Every read of the request that failed.
        aborted: Reads given up while in flight because ``recv_abort_timeout`` passed.
    """

    request: RequestReads
    landed: int = 0
    failed: tuple[Read, ...] = ()
    aborted: int = 0

    @property
    def complete(self) -> bool:
        """Whether every read of the request has landed."""
        return not self.failed and not self.aborted


@dataclass(frozen=True, slots=True)
class LateReads:
    """What became of reads that outlived their request.

    Attributes:
        late: Reads that landed late, whoever saw them land, into blocks anybody may have had.
        held: The same, into blocks that were kept from reuse.
        landed: Those of them that no other count has yet, as landed or as aborted.
        failed: Reads that failed and are in no other count yet.
        expired: Reads no longer watched, that had not been counted as aborted.
    """

    late: int
    held: int
    landed: int
    failed: tuple[Read, ...]
    expired: int


_NOTHING_LATE = LateReads(0, 0, 0, (), 0)


class ReadLedger:
    """Every read that is not known to have ended, by layer and by request.

    Args:
        watch_s: How long after its posting a read that outlived its request is still watched,
            seconds.
    """

    def __init__(self, watch_s: float = 600.0) -> None:
        self._watch_s = watch_s
        self.open_by_layer: dict[str, dict[Read, None]] = {}
        self.in_flight = 0
        self._requests: dict[str, RequestReads] = {}
        self._fresh: dict[str, RequestReads] = {}
        self._due: dict[str, RequestReads] = {}
        self._exposed: dict[str, RequestReads] = {}
        self._lost: dict[str, RequestReads] = {}
        self._late: deque[Read] = deque()
        self._late_seen = {False: 0, True: 0}
        self._superseded: list[Read] = []

    def __bool__(self) -> bool:
        return bool(self._requests or self._lost or self._late)

    @property
    def has_fresh(self) -> bool:
        """Whether reads wait for their first judgement."""
        return bool(self._fresh)

    @property
    def fresh_failures(self) -> int:
        """How many reads that wait for their first judgement have been seen failed."""
        return sum(len(request.failed) for request in self._fresh.values())

    def post(
        self,
        request_id: str,
        remote: str,
        reads: Iterable[tuple[int, str, Status]],
        *,
        nbytes: int,
        posted_at: float,
    ) -> RequestReads | None:
        """Enter the reads of one request as (layer index, layer name, status).

        A request that posts again replaces its earlier reads: whatever of them is still in
        flight is watched until it lands late. Returns None if there was nothing to enter.
        """
        request = RequestReads(request_id, remote, posted_at, nbytes)
        own, by_layer = request.open, self.open_by_layer
        for layer, layer_name, status in reads:
            read = Read(request, layer, layer_name, status)
            own[read] = None
            peers = by_layer.get(layer_name)
            if peers is None:
                by_layer[layer_name] = {read: None}
            else:
                peers[read] = None
        if not own:
            return None
        if (earlier := self._requests.pop(request_id, None)) is not None:
            self._forget(earlier)
            self._superseded += earlier.failed
            self._watch(earlier.open)
        self._lost.pop(request_id, None)
        request.total = len(request.open)
        self.in_flight += request.total
        for index in (self._requests, self._fresh, self._due):
            index[request_id] = request
        return request

    def look(self, reads: Iterable[Read]) -> int:
        """Look at open reads at a moment that counts as confirmation; return how many landed."""
        return self.sift(list(reads))[0]

    def sift(self, reads: Sequence[Read]) -> tuple[int, list[Read]]:
        """Look at open reads likewise; return how many landed, and those still in flight."""
        # As `_advance`, without a call for each: a forward may be waiting for this to return.
        landed = 0
        in_flight = []
        for read in reads:
            if read.state is _IN_FLIGHT:
                if read.status.Succeeded():
                    self._end(read, _LANDED)
                elif read.status.Failed():
                    self._end(read, ReadState.FAILED)
                else:
                    in_flight.append(read)
                    continue
            if read.state is _LANDED:
                landed += 1
        return landed, in_flight

    def look_at(self, request_ids: Iterable[str]) -> int:
        """Look likewise at all reads of these requests; return how many landed."""
        requests = (self._requests.get(request_id) for request_id in request_ids)
        return sum(self.look(request.open) for request in requests if request is not None)

    def open_reads(self) -> Iterator[Read]:
        """Every read nobody has seen terminal, request by request."""
        for request in self._requests.values():
            yield from request.open

    def due(self) -> list[Read]:
        """Every open read that a barrier has yet to wait for.

        Not those of requests that are gone, and not those a barrier has given up: what is left of
        a request is looked at here once more, and then never again.
        """
        found: list[Read] = []
        for request_id, request in list(self._due.items()):
            waiting = [read for read in request.open if read.missed is None]
            if waiting:
                found += waiting
            else:
                del self._due[request_id]
        return found

    def look_before_forward(self, scheduled: Mapping[str, int] | None, *, fresh: bool) -> int:
        """Confirm what has landed before the forward; return how many were newly seen landed.

        Of requests exposed in earlier steps only those up to the first read in flight are looked
        at: one is enough to know that the step has an exposed request in it.

        Args:
            scheduled: Tokens per request that takes part; None if unknown.
            fresh: Whether reads not judged yet are looked at too: not needed where a barrier is
                certain to look at each.
        """
        landed = 0
        if fresh:
            for request in self._fresh.values():
                landed += self.look(request.open)
        over: list[str] = []
        for request_id, request in self._exposed.items():
            if scheduled is not None and request_id not in scheduled:
                continue
            while request.open:
                state = self._advance(next(iter(request.open)))
                if state is ReadState.IN_FLIGHT:
                    break
                landed += state is ReadState.LANDED
            if request.open or request.failed:
                break
            over.append(request_id)
        for request_id in over:
            del self._exposed[request_id]
        return landed

    def finish(self, request_ids: Collection[str]) -> int:
        """Note requests that the scheduler has finished or preempted: their blocks are free.

        They take part in no further step on what their reads bring. Returns how many of their
        reads were seen landed in time.
        """
        landed = 0
        if not self._requests and not self._lost:
            return landed
        for request_id in request_ids:
            self._lost.pop(request_id, None)
            request = self._requests.get(request_id)
            if request is None or request.gone:
                continue
            for index in (self._fresh, self._due, self._exposed):
                index.pop(request_id, None)
            landed += self.look(request.open)
            request.gone = True
        return landed

    def hold(self, request_ids: Collection[str]) -> None:
        """Note requests whose blocks are kept from reuse until their reads have ended."""
        for request_id in request_ids:
            if (request := self._requests.get(request_id)) is not None:
                request.held = True
        for read in self._late:
            if read.request.request_id in request_ids:
                read.request.held = True

    def judge(self, *, full_graph: bool, scheduled: Mapping[str, int] | None) -> Verdict:
        """Say what the forward that just ended had consumed.

        Args:
            full_graph: Whether the forward was one replayed FULL graph.
            scheduled: Tokens per request that took part; None if unknown (then every request
                that has not finished did).
        """
        verdict = Verdict()
        # The shorter of the two is gone through: who waits to be run is in the first alone.
        if scheduled is None or not self._fresh.keys().isdisjoint(scheduled.keys()):
            for request in list(self._fresh.values()):
                if scheduled is None or request.request_id in scheduled:
                    self._judge_request(request, verdict, full_graph=full_graph)
        self._judge_lost(verdict, scheduled)
        self._judge_still_exposed(verdict, scheduled)
        return verdict

    def settle(self, request_id: str, *, recovers: bool) -> Settled | None:
        """Close the account of a request that upstream has dropped.

        How it ended is what its reads say now: all landed, or one failed, or else the rest was
        aborted.

        Args:
            request_id: The request.
            recovers: Whether the scheduler has been told of blocks that are missing. Otherwise
                the request goes on decoding without them, and every step it takes part in is
                unprotected until it finishes.
        """
        request = self._requests.get(request_id)
        if request is None:
            return None
        landed = self.look(request.open)
        aborted = 0 if request.failed else len(request.open)
        self._forget(request)
        if aborted:
            for read in request.open:
                read.state = ReadState.ABORTED
            self.in_flight -= aborted
        self._watch(request.open)
        settled = Settled(request, landed, tuple(request.failed), aborted)
        if not (settled.complete or recovers or request.gone):
            self._lost[request_id] = request
        return settled

    def late_landings(self, now: float) -> LateReads:
        """Look at reads that outlived their request, some of them each step.

        Args:
            now: Clock reading, seconds.
        """
        if not (self._late or self._superseded or any(self._late_seen.values())):
            return _NOTHING_LATE
        late, self._late_seen = self._late_seen, {False: 0, True: 0}
        failed, self._superseded = self._superseded, []
        landed = expired = 0
        for _ in range(min(len(self._late), LATE_LOOKS_PER_STEP)):
            read = self._late.popleft()
            counted = read.state is ReadState.ABORTED
            if read.status.Succeeded():
                read.state = ReadState.LANDED
                late[read.request.held] += 1
                landed += not counted
                self._found(read)
            elif read.status.Failed():
                read.state = ReadState.FAILED
                if not counted:
                    failed.append(read)
            elif now - read.request.posted_at > self._watch_s:
                read.state = ReadState.ABORTED
                expired += not counted
            else:
                self._late.append(read)
                continue
            self.in_flight -= not counted
        return LateReads(late[False], late[True], landed, tuple(failed), expired)

    def oldest_posted_at(self) -> float | None:
        """When the oldest request with an open read posted its first, or None.

        Requests are kept in the order of their posting.
        """
        return next((r.posted_at for r in self._requests.values() if r.open), None)

    def _judge_request(self, request: RequestReads, verdict: Verdict, *, full_graph: bool) -> None:
        del self._fresh[request.request_id]
        unlanded = list(request.open)
        blamed: list[tuple[Read, str, bool]] = [(read, "failed", True) for read in request.failed]
        for read in unlanded:
            state = self._advance(read)
            verdict.landed += state is ReadState.LANDED
            if state is ReadState.FAILED:
                cause = "failed"
            else:
                cause = read.missed or ("full_graph" if full_graph else "no_barrier")
            blamed.append((read, cause, state is not ReadState.LANDED))
        if not blamed:
            return
        for _, cause, certain in blamed:
            key = (cause, certain)
            verdict.unlanded[key] = verdict.unlanded.get(key, 0) + 1
            verdict._blame(cause, certain=certain)
        request.exposure = Exposure(
            request.request_id,
            min((cause for _, cause, _ in blamed), key=_RANK.__getitem__),
            any(certain for _, _, certain in blamed),
            _layers_of(read for read, _, _ in blamed),
        )
        verdict.exposures.append(request.exposure)
        if request.open or request.failed:
            self._exposed[request.request_id] = request

    def _judge_lost(self, verdict: Verdict, scheduled: Mapping[str, int] | None) -> None:
        """Find requests that decode on without blocks that will never come."""
        for request_id, request in self._lost.items():
            if scheduled is not None and request_id not in scheduled:
                continue
            if request.exposure is None:
                missing = [*request.failed, *request.open]
                cause = "failed" if request.failed else "timeout"
                request.exposure = Exposure(
                    request_id, cause, certain=True, layers=_layers_of(missing)
                )
                verdict.exposures.append(request.exposure)
                key = (cause, True)
                verdict.unlanded[key] = verdict.unlanded.get(key, 0) + len(missing)
            verdict._blame(request.exposure.cause, certain=True)

    def _judge_still_exposed(self, verdict: Verdict, scheduled: Mapping[str, int] | None) -> None:
        """Find one request of an earlier step that is still exposed: one makes the step so."""
        fresh = {exposure.request_id for exposure in verdict.exposures}
        for request in self._exposed.values():
            if request.request_id in fresh:
                continue
            if scheduled is not None and request.request_id not in scheduled:
                continue
            assert request.exposure is not None  # noqa: S101  (only exposed requests are here)
            while request.open:
                state = self._advance(next(iter(request.open)))
                verdict.landed += state is ReadState.LANDED
                verdict._blame(request.exposure.cause, certain=state is not ReadState.LANDED)
                if state is not ReadState.LANDED:
                    return
            if request.failed:
                verdict._blame(request.exposure.cause, certain=True)
                return

    def _advance(self, read: Read) -> ReadState:
        """Look at one read's status and move it if it has ended."""
        if read.state is not ReadState.IN_FLIGHT:
            return read.state
        if read.status.Succeeded():
            self._end(read, ReadState.LANDED)
        elif read.status.Failed():
            self._end(read, ReadState.FAILED)
        return read.state

    def _end(self, read: Read, state: ReadState) -> None:
        read.state = state
        request = read.request
        del request.open[read]
        if state is not _LANDED:
            request.failed.append(read)
        elif request.gone:
            self._late_seen[request.held] += 1
        self.in_flight -= 1
        # As `_unindex`, without a call for each read.
        peers = self.open_by_layer.get(read.layer_name)
        if peers is not None:
            peers.pop(read, None)
            if not peers:
                del self.open_by_layer[read.layer_name]

    def _unindex(self, read: Read) -> None:
        peers = self.open_by_layer.get(read.layer_name)
        if peers is not None:
            peers.pop(read, None)
            if not peers:
                del self.open_by_layer[read.layer_name]

    def _forget(self, request: RequestReads) -> None:
        for read in request.open:
            self._unindex(read)
        for index in (self._requests, self._fresh, self._due, self._exposed):
            if index.get(request.request_id) is request:
                del index[request.request_id]

    def _found(self, read: Read) -> None:
        """A read that had been given up has landed: its request may have all its blocks now."""
        request = read.request
        request.open.pop(read, None)
        lost = self._lost.get(request.request_id) is request
        if lost and not (request.open or request.failed):
            del self._lost[request.request_id]

    def _watch(self, reads: Iterable[Read]) -> None:
        self._late.extend(reads)


def _layers_of(reads: Iterable[Read]) -> tuple[int, ...]:
    return tuple(sorted({read.layer for read in reads}))
