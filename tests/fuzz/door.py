"""A way in for what others have written, as a function of bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CASES = Path(__file__).parents[1] / "cases"
NEXT = "\0"
"""Between two things that come in together."""


@dataclass(frozen=True, slots=True)
class Door:
    """One way in.

    Attributes:
        enter: Takes what somebody brings.
        refusals: How it says no; their text is what the user gets to see.
        seeds: What people bring.
        words: What they are likely to say.
    """

    enter: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...] = ()
    seeds: tuple[bytes, ...] = ()
    words: tuple[str, ...] = ()

    def takes(self, brought: bytes) -> bool:
        """Whether it is let in; else somebody is told why not. Anything else is a bug."""
        try:
            self.enter(brought)
        except self.refusals as refusal:
            if not str(refusal).strip():
                raise AssertionError(f"refused without a word: {refusal!r}") from refusal
            return False
        return True


def text_of(brought: bytes) -> str:
    return brought.decode(errors="replace")


def json_of(text: str) -> Any:
    """What stands there; None where it is no JSON, which somebody before us has refused."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def case(name: str) -> bytes:
    return (CASES / name).read_bytes()
