"""A way in for what others have written, as a function of bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CASES = Path(__file__).parents[1] / "cases"
NEXT = "\0"
"""Between two things that come in together."""


ODD = (
    *(b"9" * 400, b"1e400", b"-1", b"NaN", b"null", b"true", b"{}", b"[]", b'""', b'"\\ud800"'),
    *(b"", b"\x00", b"\xff", b"\n", b"\x1b[2J", b"\xe2\x80\xa8", b"x" * 5000),
)
"""What nobody thinks of."""
_TOKEN = re.compile(rb'"[^"]*"|[-+.\d]+|\w+|\{[^{}]*\}|\[[^\[\]]*\]')


def tokens(brought: bytes) -> list[tuple[int, int]]:
    """Where each word, number, text and smallest group begins and ends; at least one place."""
    return [found.span() for found in _TOKEN.finditer(brought)] or [(0, 0)]


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
