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
from tests.fuzz.door import ODD, Door, tokens
from tests.fuzz.doors import DOORS
from tests.tools import ALL

each = pytest.mark.parametrize("name", DOORS)
many = settings(max_examples=100, deadline=None)


@st.composite
def changed(draw: st.DrawFn, door: Door) -> bytes:
    """What somebody brings, with a few words of it replaced by likely and unlikely ones."""
    brought = draw(st.sampled_from(door.seeds))
    words = st.sampled_from([word.encode() for word in door.words] or ODD)
    for _ in range(draw(st.integers(0, 3))):
        begin, end = draw(st.sampled_from(tokens(brought)))
        word = draw(st.one_of(st.sampled_from(ODD), words, st.binary(max_size=8)))
        brought = brought[:begin] + word + brought[end:]
    return brought


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
