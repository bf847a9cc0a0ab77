"""Calls that begin at the same time."""

from __future__ import annotations

import pytest

from moriio_observed.canary.at_once import at_once


def test_each_has_its_answer_in_order() -> None:
    assert at_once([lambda: 1, lambda: 2]) == [1, 2]
    assert at_once([]) == []


def test_what_one_raises_is_raised() -> None:
    def fails() -> int:
        raise ValueError("a reason")

    with pytest.raises(ValueError, match="a reason"):
        at_once([lambda: 1, fails])
