"""The guard: no request is run before its reads have verifiably landed.

With ``guard: recompute`` or ``fail`` the scheduler does not run a request while its reads fly; it
waits to be told. `Guard` is the worker's side: once a step it looks at the reads of the requests
for which something may have changed, and says which have arrived, and which are given up because a
read failed, or was still in flight when the deadline or P's lease had passed. With ``report``
nobody waits, and all it says is when no read can write into a request's blocks any more.

It keeps its own account, apart from the ledger, so that an error of the telemetry never lets a
request through. Nothing here knows vLLM, torch or mori.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from moriio_observed.reads import Status

__all__ = ["GivenUp", "Guard", "Turn"]

DOZE_S = 0.002
"""How long a step that runs nothing waits for a read, seconds. vLLM asks again at once, and a
request that comes meanwhile has to wait as long."""

LOOKS_IN_TURN = 8
"""How many of the requests of which there is no news a turn looks at all the same."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A request that is not run on what its reads have brought.

    Attributes:
        request_id: vLLM's id of the request.
        cause: ``failed``, or ``timeout`` where reads were in flight for too long.
        layers: Indices of the layers whose reads have not landed, ascending.
        in_flight: Whether a read may still write into its blocks.
    """

    request_id: str
    cause: str
    layers: tuple[int, ...]
    in_flight: bool


@dataclass(slots=True)
class Turn:
    """What has become of the requests since the turn before.

    Attributes:
        landed: Requests all of whose reads have landed.
        settled: Requests into whose blocks no read will write any more.
        overdue: Requests among them whose reads had not all ended when P's lease did.
        arrived: Requests the scheduler need not wait for any longer, those given up included.
        invalid: Blocks of requests that were given up.
        given_up: Those requests.
    """

    landed: list[str] = field(default_factory=list)
    settled: list[str] = field(default_factory=list)
    overdue: list[str] = field(default_factory=list)
    arrived: set[str] = field(default_factory=set)
    invalid: set[int] = field(default_factory=set)
    given_up: list[GivenUp] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Request:
    request_id: str
    blocks: frozenset[int]
    waits: bool
    deadline: float
    lease_end: float
    watched_until: float
    posted: bool = False
    dropped: bool = False
    gone: bool = False
    open: list[tuple[int, Status]] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)

    @property
    def due(self) -> float:
        """When the time alone may decide, by the guard's clock."""
        return min(self.deadline, self.lease_end) if self.waits else self.watched_until

    def look(self) -> bool:
        """Look at its reads up to the first in flight; return whether all have ended."""
        while self.open:
            layer, status = self.open[-1]
            if not status.Succeeded():
                if not status.Failed():
                    return False
                self.failed.append(layer)
            self.open.pop()
        return self.posted

    def give_up(self, *, in_flight: bool) -> GivenUp:
        not_landed = (layer for layer, status in self.open if not status.Succeeded())
        layers = {*self.failed, *not_landed}
        cause = "failed" if self.failed else "timeout"
        return GivenUp(self.request_id, cause, tuple(sorted(layers)), in_flight)


class Guard:
    """Which requests of one decode worker have all their KV.

    Args:
        waits: Whether the scheduler waits to be told before it runs a request.
        deadline_s: Seconds after which reads in flight are given up.
        watch_s: Seconds for which reads in flight are watched at all.
        clock: A monotonic clock, seconds.
        sleep: Sleeps for seconds; only used where mori has no event to wait for.
    """

    def __init__(
        self,
        *,
        waits: bool,
        deadline_s: float,
        watch_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.waits = waits
        self._deadline_s = deadline_s
        self._watch_s = watch_s
        self._clock = clock
        self._sleep = sleep
        self._requests: dict[str, _Request] = {}
        # Whom the next turn looks at, of whom it looks at some, and from when on at everybody.
        self._asked: dict[str, None] = {}
        self._in_turn: dict[str, None] = {}
        self._due = math.inf

    def __len__(self) -> int:
        return len(self._requests)

    def announce(
        self, blocks: Mapping[str, Collection[int]], lease_left: Mapping[str, float]
    ) -> None:
        """Reads are about to be posted for these requests.

        Args:
            blocks: The blocks each is to be read into.
            lease_left: For how many seconds P still holds what is read, where that is known.
        """
        if not blocks:
            return
        now = self._clock()
        for request_id, own in blocks.items():
            request = self._requests[request_id] = _Request(
                request_id,
                frozenset(own),
                self.waits,
                now + self._deadline_s,
                now + lease_left.get(request_id, math.inf),
                now + self._watch_s,
            )
            self._due = min(self._due, request.due)

    def posted(self, request_id: str, reads: Collection[tuple[int, Status]]) -> None:
        """The reads of a request were posted, as (layer index, status).

        Upstream tracks them from now on: until it drops them, all it has seen of them is that they
        are in flight, and there is no need to look at each here as well.
        """
        request = self._requests.get(request_id)
        if request is not None:
            self._asked[request_id] = None
            # Where none was posted, nothing has come into the blocks that were announced.
            request.posted = bool(reads) or not request.waits
            request.open.extend(reads)
            # The first posted lands first, most likely: the last one is looked at last.
            request.open.reverse()

    def dropped(self, request_ids: Iterable[str]) -> None:
        """Upstream tracks these no more: they have landed, or one has failed, or it gives up."""
        for request_id in request_ids:
            if (request := self._requests.get(request_id)) is not None:
                request.dropped = True
                self._asked[request_id] = None

    def released(self, request_id: str) -> None:
        """P was told that a request's reads are over: what lands of them now may be another's."""
        if (request := self._requests.get(request_id)) is not None:
            request.lease_end = -math.inf
            self._asked[request_id] = None

    def decided(self, request_id: str) -> bool:
        """Whether it has been said what becomes of a request, or nobody waits for that."""
        request = self._requests.get(request_id)
        return request is None or not request.waits

    def finished(self, request_ids: Iterable[str]) -> None:
        """The scheduler has finished these requests: it holds their blocks by itself."""
        for request_id in request_ids:
            if (request := self._requests.get(request_id)) is not None:
                request.gone = True
                self._asked[request_id] = None

    def _doze(self) -> None:
        """Wait a little for news of a read: a step that runs nothing has nothing else to do."""
        waiting = next((r for r in self._requests.values() if r.waits and r.open), None)
        if waiting is None:
            return
        _, status = waiting.open[-1]
        wait_for = getattr(status, "WaitFor", None)
        if wait_for is None:
            self._sleep(DOZE_S)
        else:
            wait_for(math.ceil(DOZE_S * 1000))

    def turn(self, *, idle: bool = False) -> Turn:
        """Look once at the reads of every request that may have changed, and decide.

        Some of the others have their turn too: what upstream is late to tell of costs time, and
        not until the deadline.

        Args:
            idle: Whether the step runs nothing, and so has time to wait a little for a read, and
                to look at everybody.
        """
        if idle:
            self._doze()
        turn = Turn()
        everybody = idle or self._clock() >= self._due
        looked = [(request, request.look()) for request in self._chosen(everybody=everybody)]
        if not looked:
            return turn
        # After the looks: what is seen landed within its lease has landed within it.
        now = self._clock()
        for request, has_ended in looked:
            request_id = request.request_id
            if request.waits:
                self._decide(request, turn, now, ended=has_ended)
            if has_ended:
                turn.settled.append(request_id)
                if now > request.lease_end:
                    turn.overdue.append(request_id)
            if has_ended or (now > request.watched_until and not request.waits):
                del self._requests[request_id]
                self._in_turn.pop(request_id, None)
            elif request.waits and request.dropped:
                self._asked[request_id] = None
            else:
                self._in_turn[request_id] = None
        if everybody:
            self._due = min((each.due for each in self._requests.values()), default=math.inf)
        return turn

    def _chosen(self, *, everybody: bool) -> list[_Request]:
        """Whom a turn looks at."""
        asked, self._asked = self._asked, {}
        for request_id in list(islice(self._in_turn, LOOKS_IN_TURN)):
            del self._in_turn[request_id]
            asked[request_id] = None
        if everybody:
            return list(self._requests.values())
        known = map(self._requests.get, asked)
        return [request for request in known if request is not None]

    @staticmethod
    def _decide(request: _Request, turn: Turn, now: float, *, ended: bool) -> None:
        sound = ended and not request.failed and now <= request.lease_end
        too_late = now >= min(request.deadline, request.lease_end)
        if not (sound or ended or too_late or request.gone):
            return
        request.waits = False
        turn.arrived.add(request.request_id)
        if sound:
            turn.landed.append(request.request_id)
        elif not request.gone:
            turn.invalid |= request.blocks
            turn.given_up.append(request.give_up(in_flight=not ended))
