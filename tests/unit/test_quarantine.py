"""Blocks that a read may still write into are nobody's until it has ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from moriio_observed.quarantine import Quarantine
from tests.unit.fakes import FakeClock

LIMIT_S = 600.0


class Block:
    def __init__(self) -> None:
        self.references = 1
        self.found_by_prefix = True


class Pool:
    """Eight blocks, each in use by one request.

    Attributes:
        free: How many blocks it says nobody uses.
    """

    def __init__(self) -> None:
        self.free = 8
        self.blocks = [Block() for _ in range(8)]

    def get_num_free_blocks(self) -> int:
        return self.free

    def touch(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            block.references += 1

    def free_blocks(self, ordered_blocks: Iterable[Block]) -> None:
        for block in ordered_blocks:
            block.references -= 1

    def evict_blocks(self, block_ids: set[int]) -> None:
        for block_id in block_ids:
            self.blocks[block_id].found_by_prefix = False

    def referenced(self) -> list[int]:
        return [block.references for block in self.blocks[:3]]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def pool() -> Pool:
    return Pool()


@pytest.fixture
def quarantine(clock: FakeClock, pool: Pool) -> Quarantine:
    quarantine = Quarantine(LIMIT_S, clock)
    quarantine.pool = pool
    return quarantine


def test_held_blocks_outlive_their_request(quarantine: Quarantine, pool: Pool) -> None:
    assert quarantine.hold("r", [0, 1])
    assert "r" in quarantine
    assert quarantine.blocks == 2
    assert pool.referenced() == [2, 2, 1]


def test_held_blocks_are_nobodys_prefix(quarantine: Quarantine, pool: Pool) -> None:
    quarantine.hold("r", [0])
    assert [block.found_by_prefix for block in pool.blocks[:2]] == [False, True]


def test_blocks_are_held_once(quarantine: Quarantine, pool: Pool) -> None:
    quarantine.hold("r", [0, 1])
    quarantine.hold("r", [0, 1])
    assert pool.referenced() == [2, 2, 1]


def test_released_blocks_are_free(quarantine: Quarantine, pool: Pool) -> None:
    quarantine.hold("r", [0, 1])
    quarantine.release("r")
    quarantine.release("r")
    assert pool.referenced() == [1, 1, 1]
    assert quarantine.blocks == 0


def test_blocks_that_two_requests_share_are_counted_once(
    quarantine: Quarantine, pool: Pool
) -> None:
    quarantine.hold("one", [1, 2])
    quarantine.hold("two", [2, 3])
    assert (len(quarantine), quarantine.blocks) == (2, 3)
    assert quarantine.left == len(pool.blocks) - 1 - 3, "one block is vLLM's own"
    quarantine.release("one")
    assert quarantine.blocks == 2
    quarantine.release("two")
    assert quarantine.blocks == 0


def test_blocks_are_held_no_longer_than_the_limit(
    quarantine: Quarantine, pool: Pool, clock: FakeClock
) -> None:
    quarantine.hold("early", [0])
    clock.sleep(1)
    quarantine.hold("late", [1])
    clock.sleep(LIMIT_S - 1)
    assert quarantine.expire() == ["early"]
    assert pool.referenced() == [1, 2, 1]
    assert quarantine.expire() == []


def test_nothing_is_held_before_the_pool_is_known() -> None:
    quarantine = Quarantine(LIMIT_S)
    assert not quarantine.hold("r", [0])
    quarantine.release("r")
    assert "r" not in quarantine
