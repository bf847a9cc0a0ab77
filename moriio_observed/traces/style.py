"""How a trace is drawn."""

from __future__ import annotations

from dataclasses import dataclass

from moriio_observed.traces.spans import SLOW_S

FAILED, SLOW = "✖", "▲"
PLAIN, MARKED = "━", "█"
BEFORE, AFTER = "◀", "▶"
BRANCH, LAST, LINE, GAP = "├─ ", "└─ ", "│  ", "   "
CUT = "…"

IN_ASCII = str.maketrans("✖▲━█◀▶├─└│…µ", "X!-#<>|-`|~u")
"""For terminals without these characters."""


@dataclass(frozen=True)
class Style:
    """How a trace is shown.

    Attributes:
        width: Columns of the terminal.
        slow_s: A wait at least this long is slow, in seconds.
        everything: Whether no spans are summed up.
        verbose: Whether every attribute, event and link is shown.
        whole_axis: Whether the axis is that of the whole trace even where the reads take a small
            part of it.
    """

    width: int = 80
    slow_s: float = SLOW_S
    everything: bool = False
    verbose: bool = False
    whole_axis: bool = False
