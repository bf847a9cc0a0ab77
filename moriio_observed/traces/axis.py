"""The axis that all bars of a page share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moriio_observed.traces.spans import HOLD, OURS, Span
from moriio_observed.traces.style import AFTER, BEFORE

ZOOM = 4
"""Where the reads take less than one of so many parts of a trace, the axis is theirs."""


@dataclass(frozen=True)
class Axis:
    """From where to where the bars go.

    Attributes:
        start: In nanoseconds since the epoch.
        end: Likewise.
    """

    start: int
    end: int

    def bar(self, spans: Sequence[Span], width: int, glyph: str) -> str:
        """A bar from the first start to the last end, at least one column wide.

        What lies before or after the axis is a sign at its edge.
        """
        first, last = extent(spans).start, extent(spans).end
        if last < self.start:
            return BEFORE
        length = max(1, self.end - self.start)
        left = min(width - 1, max(0, first - self.start) * width // length)
        right = max(left + 1, -(-(min(last, self.end) - self.start) * width // length))
        head = BEFORE if first < self.start else glyph
        tail = AFTER if last > self.end else glyph
        return " " * left + (head + glyph * (right - left - 2) + tail)[-(right - left) :]


def extent(spans: Sequence[Span]) -> Axis:
    """From the first start to the last end of these spans."""
    return Axis(min(span.start_ns for span in spans), max(span.end_ns for span in spans))


def axis_of(spans: Sequence[Span], *, whole: bool) -> Axis:
    """The axis on which the waits of these spans can be told apart.

    Args:
        spans: What has bars.
        whole: Whether it is to be that of them all, come what may.
    """
    everything = extent(spans)
    waiting = [span for span in spans if span.name.startswith(OURS) and span.name != HOLD]
    if whole or not waiting:
        return everything
    part = extent(waiting)
    few = (part.end - part.start) * ZOOM < everything.end - everything.start
    return part if few and part.start < part.end else everything
