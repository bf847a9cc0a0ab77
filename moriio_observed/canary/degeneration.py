"""Cheap signs that a text has degenerated, measured against what the recorded answers show."""

from __future__ import annotations

import unicodedata
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moriio_observed.canary.answers import Answer
from moriio_observed.canary.metrics import Sign

COMPRESSION_MARGIN = 0.8
"""A text may compress to this share of what the best compressed recorded one does."""
LOOP_MARGIN = 0.25
"""So much more of a text may be in a loop than of the recorded one with the longest."""
SCRIPT_MARGIN = 0.1
"""So much of a text's letters may be of scripts that no recorded one has."""
LONGEST_LOOP = 8
"""Loops of up to so many tokens, or words, are looked for."""

_BROKEN = "\N{REPLACEMENT CHARACTER}"
"""Stands for bytes that are no text; counts as a script of its own."""


@dataclass(frozen=True)
class Limits:
    """What is no sign of degeneration.

    Attributes:
        compression: The least compressed size of a text over its size.
        loop: The greatest share of a text that is in one loop.
        scripts: The scripts that letters may have.
    """

    compression: float
    loop: float
    scripts: frozenset[str]

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> Limits:
        """The limits that these answers set; there must be one at least."""
        return cls(
            compression=COMPRESSION_MARGIN * min(compression(one.text) for one in answers),
            loop=LOOP_MARGIN + max(map(loop, answers)),
            scripts=frozenset(script for one in answers for script in _scripts(one.text)),
        )

    def signs(self, answer: Answer) -> tuple[Sign, ...]:
        """The signs that an answer shows."""
        letters = list(_scripts(answer.text))
        foreign = sum(script not in self.scripts for script in letters)
        found = {
            Sign.COMPRESSION: compression(answer.text) < self.compression,
            Sign.LOOP: loop(answer) > self.loop,
            Sign.SCRIPT: foreign > SCRIPT_MARGIN * len(letters),
        }
        return tuple(sign for sign, shown in found.items() if shown)


def compression(text: str) -> float:
    """The compressed size of a text over its size in UTF-8; 1 for none."""
    data = text.encode(errors="surrogatepass")
    return len(zlib.compress(data)) / len(data) if data else 1.0


def loop(answer: Answer) -> float:
    """The share of an answer's tokens (words, without ids) that are in its longest loop, 0 to 1."""
    pieces = answer.text.split() if answer.tokens is None else answer.tokens
    return max((_looped(pieces, n) for n in range(1, LONGEST_LOOP + 1)), default=0) / (
        len(pieces) or 1
    )


def _looped(pieces: Sequence[int | str], period: int) -> int:
    """How many pieces the longest run has in which each is the one a period before."""
    longest = run = 0
    for one, before in zip(pieces[period:], pieces, strict=False):
        run = run + 1 if one == before else 0
        longest = max(longest, run)
    # Less than a whole period twice is no loop.
    return longest + period if longest >= period else 0


def _scripts(text: str) -> Iterable[str]:
    """The script of each letter, by the first word of its name: LATIN, CJK, ARABIC."""
    for character in text:
        if character == _BROKEN:
            yield character
        elif character.isalpha():
            yield unicodedata.name(character, "?").partition(" ")[0]
