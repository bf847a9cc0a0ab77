"""Any bytes at every front door: what comes in is used, or refused with a clear word.

Hypothesis changes what people bring; libFuzzer goes by coverage as well, here for a moment only
and by ``python -m tests.fuzz`` for as long as somebody wants.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.__main__ import holds
from tests.fuzz.door import Door
from tests.fuzz.doors import DOORS
from tests.tools import ALL

each = pytest.mark.parametrize("name", DOORS)
many = settings(max_examples=100, deadline=None)


def changed(door: Door) -> st.SearchStrategy[bytes]:
    """What somebody brings, with pieces of it cut out, doubled, and replaced by likely words."""
    pieces = st.one_of(
        st.sampled_from([word.encode() for word in door.words] or [b""]), st.binary(max_size=8)
    )
    cuts = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 20), pieces), max_size=4)
    return st.builds(_cut, st.sampled_from(door.seeds), cuts)


def _cut(seed: bytes, cuts: list[tuple[float, int, bytes]]) -> bytes:
    for place, length, piece in cuts:
        at = round(place * len(seed))
        seed = seed[:at] + piece + seed[at + length :]
    return seed


@each
def test_some_of_what_people_bring_is_taken(name: str) -> None:
    door = DOORS[name]
    assert any(map(door.takes, door.seeds))


@each
@many
@given(st.data())
def test_nothing_breaks_a_door(name: str, data: st.DataObject) -> None:
    door = DOORS[name]
    door.takes(data.draw(st.one_of(changed(door), st.binary(max_size=200))))


@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None and not os.environ.get(ALL),
    reason="not installed: atheris",
)
@pytest.mark.parametrize("name", ["settings", "log", "metrics"])
def test_nothing_that_coverage_leads_to_breaks_a_door(name: str, tmp_path: Path) -> None:
    assert holds(name, tmp_path, "-runs=1000")
