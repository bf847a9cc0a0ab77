"""Wrong KV is followed through the prefix cache, and taken out of it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from moriio_observed.spread import Spread


class Rig:
    def __init__(self) -> None:
        self.evicted: set[int] = set()
        self.spread = Spread(self._evict)

    def _evict(self, blocks: Iterable[int]) -> None:
        self.evicted.update(blocks)

    def start(self, request_id: str, uses: list[int], reads: list[int] | None = None) -> None:
        self.spread.started(request_id)
        if reads:
            self.spread.reading(request_id, reads)
        self.spread.uses(request_id, lambda: uses)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_who_uses_what_is_being_read_for_another_shares_it(rig: Rig) -> None:
    rig.start("reader", [0, 1], reads=[0, 1])
    rig.start("sharer", [0, 5])
    rig.start("other", [6])
    assert rig.spread.expose("reader") == {"sharer"}


def test_who_reads_the_same_blocks_again_shares_them(rig: Rig) -> None:
    rig.start("reader", [0, 1], reads=[0, 1])
    rig.start("again", [0, 1, 2], reads=[0, 1, 2])
    assert rig.spread.expose("reader") == {"again"}


def test_nobody_shares_with_itself(rig: Rig) -> None:
    rig.start("reader", [0, 1], reads=[0, 1])
    assert rig.spread.expose("reader") == set()


def test_what_has_settled_is_sound(rig: Rig) -> None:
    rig.start("reader", [0, 1], reads=[0, 1])
    rig.start("before", [0])
    rig.spread.settled("reader")
    rig.start("after", [0])
    assert rig.spread.expose("reader") == set()


def test_what_the_exposed_and_their_sharers_have_read_is_evicted(rig: Rig) -> None:
    rig.start("reader", [0, 1], reads=[0, 1])
    rig.start("sharer", [0, 5], reads=[5])
    rig.spread.expose("reader")
    assert rig.evicted == {0, 1, 5}


def test_what_the_spoilt_compute_is_evicted_when_they_end(rig: Rig) -> None:
    rig.start("spoilt", [0])
    rig.start("sound", [1])
    rig.spread.spoil("spoilt", [0])
    rig.spread.finished("spoilt", lambda: [0, 7])
    rig.spread.finished("sound", lambda: [1, 8])
    assert rig.evicted == {0, 7}


def test_what_is_read_for_a_spoilt_request_is_evicted_at_once(rig: Rig) -> None:
    rig.spread.started("spoilt")
    rig.spread.spoil("spoilt")
    rig.spread.reading("spoilt", [3])
    assert rig.evicted == {3}


def test_nothing_is_remembered_of_requests_that_are_over(rig: Rig) -> None:
    rig.start("reader", [0, 1], reads=[0, 1])
    rig.start("sharer", [0])
    for request_id in ("sharer", "reader"):
        rig.spread.finished(request_id, list)
    rig.spread.expose("reader")
    rig.spread.settled("reader")
    rig.spread.settled("reader")
    assert len(rig.spread) == 0
