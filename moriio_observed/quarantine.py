"""Blocks kept from reuse while a read may still write into them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["BlockPool", "Quarantine"]


class BlockPool(Protocol):
    """What we need of vLLM's pool of KV cache blocks."""

    blocks: Sequence[Any]
    """All blocks, by their id."""

    def touch(self, blocks: Sequence[Any]) -> None:
        """Refer to these blocks once more."""

    def get_num_free_blocks(self) -> int:
        """How many blocks nobody refers to."""

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        """Refer to these blocks once less."""

    def evict_blocks(self, block_ids: set[int]) -> None:
        """Let nobody find these blocks in the prefix cache."""


@dataclass(frozen=True, slots=True)
class _Held:
    blocks: list[Any]
    until: float


class Quarantine:
    """Holds the blocks of requests that are gone, or recomputed elsewhere, by one more reference.

    Only for blocks that their request is about to give back: vLLM takes the references of a block
    in use for the number of requests that share it.

    Args:
        limit_s: Seconds after which blocks are given back, whatever their reads do.
        clock: A monotonic clock, seconds.

    Attributes:
        pool: vLLM's blocks; None as long as it has not been told, and nothing is held.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.pool: BlockPool | None = None
        self._limit_s = limit_s
        self._clock = clock
        self._held: dict[str, _Held] = {}
        # By how many requests each block is held: counted in every step, among many thousands.
        self._holders: Counter[int] = Counter()

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._held

    @property
    def blocks(self) -> int:
        """How many blocks are held, each counted once whoever shares it."""
        return len(self._holders)

    @property
    def free(self) -> int:
        """How many blocks nobody uses now."""
        return 0 if self.pool is None else self.pool.get_num_free_blocks()

    @property
    def left(self) -> int:
        """How many blocks there are for everybody else, in use or not."""
        # The first one is vLLM's own, for nothing.
        return 0 if self.pool is None else len(self.pool.blocks) - 1 - self.blocks

    def __len__(self) -> int:
        """For how many requests blocks are held."""
        return len(self._held)

    def hold(self, request_id: str, block_ids: Collection[int]) -> bool:
        """Hold a request's blocks; return whether they are held."""
        if self.pool is None:
            return False
        if request_id not in self._held:
            blocks = [self.pool.blocks[block_id] for block_id in block_ids]
            self.pool.touch(blocks)
            self.evict(block_ids)
            self._held[request_id] = _Held(blocks, self._clock() + self._limit_s)
            self._holders.update(map(id, blocks))
        return True

    def evict(self, block_ids: Iterable[int]) -> None:
        """Let nobody find these blocks in the prefix cache: what stands in them may be wrong."""
        if self.pool is not None:
            self.pool.evict_blocks(set(block_ids))

    def release(self, request_id: str) -> None:
        """Give a request's blocks back, if they are held."""
        held = self._held.pop(request_id, None)
        if held is not None and self.pool is not None:
            self.pool.free_blocks(held.blocks)
            for block in map(id, held.blocks):
                self._holders[block] -= 1
                if not self._holders[block]:
                    del self._holders[block]

    def release_all(self) -> None:
        """Give all blocks back."""
        for request_id in list(self._held):
            self.release(request_id)

    def expire(self) -> list[str]:
        """Give back what has been held for too long; return whose it was."""
        now = self._clock()
        over = [request_id for request_id, held in self._held.items() if now >= held.until]
        for request_id in over:
            self.release(request_id)
        return over
