"""Completions on their own threads: transfers wait for their time, then the bytes move.

Bytes are copied when a transfer lands, never before: who does not wait for a slow read sees
stale memory, as with the real thing.
"""

import heapq
import itertools
import math
import queue
import threading
import time
from collections import deque

from moriio_observed.loopback.descriptors import EngineDesc, PeerFailureEvent
from moriio_observed.loopback.enums import PeerFailureReason, StatusCode
from moriio_observed.loopback.memory import Pieces, read_memory, write_memory
from moriio_observed.loopback.places import PlaceCounter
from moriio_observed.loopback.process import DeathWatch, ProcessId
from moriio_observed.loopback.status import TransferStatus

_COPY_THREADS = 2


class Peer:
    """A remote engine as one engine here sees it.

    Attributes:
        key: Its engine key.
        process: Its process.
        gone: Whether it was seen to be dead; never taken back.
        sessions: How many sessions were built towards it: the next one's layer.
        places: Where the posts towards it stand; under `posting`.
        resets: The fault file's resets that `places` has followed; under `posting`.
    """

    def __init__(self, desc: EngineDesc) -> None:
        self.key: str = desc.key
        self.process: ProcessId = desc.process
        self.gone = False
        self.sessions = 0
        self.posting = threading.Lock()
        self.places = PlaceCounter()
        self.resets = 0
        self.watch: DeathWatch | None = None


class Transfer:
    """One posted transfer: what to move, or the error to end with instead."""

    __slots__ = ("error", "peer", "pieces", "status", "write")

    def __init__(
        self,
        peer: Peer,
        pieces: Pieces,
        status: TransferStatus,
        *,
        write: bool,
        error: tuple[StatusCode, str] | None,
    ) -> None:
        self.peer = peer
        self.pieces = pieces
        self.status = status
        self.write = write
        self.error = error

    def run(self) -> tuple[StatusCode, str]:
        """Move the bytes, and return the code and message to end with.

        Raises:
            ProcessLookupError: The peer's process is gone.
        """
        if self.error is not None:
            return self.error
        try:
            (write_memory if self.write else read_memory)(self.peer.process, self.pieces)
        except ProcessLookupError:
            raise
        except OSError as error:
            return StatusCode.ERR_RDMA_OP, str(error)
        return StatusCode.SUCCESS, ""


class Transport:
    """The threads of one engine: a timer, a few that copy, and one per watched peer."""

    def __init__(self) -> None:
        self.peer_failures: deque[PeerFailureEvent] = deque()
        self._lock = threading.Lock()
        self._in_flight: set[Transfer] = set()
        self._due: list[tuple[float, int, Transfer]] = []
        self._due_changed = threading.Condition()
        self._order = itertools.count()
        self._ready: queue.SimpleQueue[Transfer | None] = queue.SimpleQueue()
        self._closed = False
        threading.Thread(target=self._run_timer, name="loopback-timer", daemon=True).start()
        for _ in range(_COPY_THREADS):
            threading.Thread(target=self._run_copies, name="loopback-copy", daemon=True).start()

    def watch(self, peer: Peer) -> None:
        """Fail what is in flight towards a peer as soon as its process ends."""
        peer.watch = DeathWatch(peer.process, lambda: self.lose(peer))

    def submit(self, transfer: Transfer, delay_s: float) -> None:
        """Take a transfer that is to land in `delay_s` seconds; infinity is a hang."""
        with self._lock:
            self._in_flight.add(transfer)
        if transfer.peer.gone:
            self._fail_lost(transfer)
        elif delay_s == 0:
            self._ready.put(transfer)
        else:
            with self._due_changed:
                due = time.monotonic() + delay_s
                heapq.heappush(self._due, (due, next(self._order), transfer))
                self._due_changed.notify()

    def lose(self, peer: Peer) -> None:
        """Note that a peer's process is gone: report it once, fail all that is in flight to it."""
        with self._lock:
            if not peer.gone:
                peer.gone = True
                self.peer_failures.append(_death(peer))
            lost = [transfer for transfer in self._in_flight if transfer.peer is peer]
        for transfer in lost:
            self._fail_lost(transfer)

    def close(self) -> None:
        """Stop the threads and fail what is still in flight."""
        with self._due_changed:
            self._closed = True
            self._due_changed.notify()
        for _ in range(_COPY_THREADS):
            self._ready.put(None)
        with self._lock:
            abandoned, self._in_flight = self._in_flight, set()
        for transfer in abandoned:
            transfer.status.Update(StatusCode.ERR_BAD_STATE, "the engine was closed")

    def _fail_lost(self, transfer: Transfer) -> None:
        transfer.status.Update(StatusCode.ERR_RDMA_OP, _death(transfer.peer).detail)
        self._forget(transfer)

    def _forget(self, transfer: Transfer) -> None:
        with self._lock:
            self._in_flight.discard(transfer)

    def _run_timer(self) -> None:
        while True:
            with self._due_changed:
                if self._closed:
                    return
                wait_s = self._due[0][0] - time.monotonic() if self._due else math.inf
                if wait_s > 0:
                    self._due_changed.wait(min(wait_s, threading.TIMEOUT_MAX))
                    continue
                _, _, transfer = heapq.heappop(self._due)
            self._ready.put(transfer)

    def _run_copies(self) -> None:
        while (transfer := self._ready.get()) is not None:
            if transfer.status.Failed():
                continue
            try:
                end = transfer.run()
            except ProcessLookupError:
                self.lose(transfer.peer)
            else:
                # Forgotten first: a death noticed from here on must not fail what has landed.
                self._forget(transfer)
                transfer.status.Update(*end)


def _death(peer: Peer) -> PeerFailureEvent:
    return PeerFailureEvent(
        remote_engine_key=peer.key,
        reason=PeerFailureReason.PEER_UNREACHABLE,
        qp_num=0,
        port_num=0,
        device_name="loopback",
        detail=f"process {peer.process.pid} of engine {peer.key} is gone",
    )
