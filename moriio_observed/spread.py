"""Where KV that has not landed goes through vLLM's prefix cache, and how it is kept from there.

Without a guard vLLM lets requests share blocks whose reads are still in flight, and keeps what was
computed on them for whoever comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

__all__ = ["Spread"]


class Spread:
    """Who shares what is being read, and whose blocks must not be found by others.

    Args:
        evict: Lets nobody find these blocks in the prefix cache.
    """

    def __init__(self, evict: Callable[[Iterable[int]], None]) -> None:
        self._evict = evict
        self._alive: set[str] = set()
        self._spoilt: set[str] = set()
        self._blocks: dict[str, Collection[int]] = {}
        self._reader: dict[int, str] = {}
        self._sharers: dict[str, set[str]] = {}

    def __len__(self) -> int:
        """How much it remembers: requests that live, and reads that have not settled."""
        return sum(map(len, (self._alive, self._spoilt, self._blocks, self._sharers)))

    def started(self, request_id: str) -> None:
        """A request was allocated blocks."""
        self._alive.add(request_id)

    def reading(self, request_id: str, blocks: Collection[int]) -> None:
        """A request is read into these blocks from now on."""
        self._blocks[request_id] = blocks
        for block in blocks:
            self._reader.setdefault(block, request_id)
        if request_id in self._spoilt:
            self._evict(blocks)

    def uses(self, request_id: str, blocks: Callable[[], Iterable[int]]) -> None:
        """A request runs on these blocks, its own and those it shares; asked for if it matters."""
        if not self._reader:
            return
        for block in blocks():
            reader = self._reader.get(block, request_id)
            if reader != request_id:
                self._sharers.setdefault(reader, set()).add(request_id)

    def spoil(self, request_id: str, blocks: Iterable[int] | None = None) -> None:
        """What a request has read, or computes from now on, may be wrong.

        Args:
            request_id: The request.
            blocks: Where it stands so far, if it is not read into.
        """
        if request_id in self._alive:
            self._spoilt.add(request_id)
        self._evict(self._blocks.get(request_id, ()) if blocks is None else blocks)

    def expose(self, request_id: str) -> set[str]:
        """A request was answered from KV that had not landed; return those that share it."""
        sharers = self._sharers.pop(request_id, set())
        for each in (request_id, *sharers):
            self.spoil(each)
        return sharers

    def settled(self, request_id: str) -> None:
        """No read of a request is in flight any more, or it has lost its blocks."""
        self._sharers.pop(request_id, None)
        for block in self._blocks.pop(request_id, ()):
            if self._reader.get(block) == request_id:
                del self._reader[block]

    def finished(self, request_id: str, blocks: Callable[[], Iterable[int]]) -> None:
        """A request has ended with these blocks; asked for if they are spoilt."""
        self._alive.discard(request_id)
        if request_id in self._spoilt:
            self._spoilt.discard(request_id)
            self._evict(blocks())
