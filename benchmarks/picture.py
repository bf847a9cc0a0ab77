"""The picture of the waits: how many of them had returned so long after the landing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

__all__ = ["picture"]

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 60, 190, 20, 50
SHORTEST_S, LONGEST_S = 1e-6, 1e-1
FONT = 'font-family="sans-serif" font-size="12"'
POINTS = 200
"""Of each curve."""
SECONDS = {1e-6: "1 µs", 1e-5: "10 µs", 1e-4: "100 µs", 1e-3: "1 ms", 1e-2: "10 ms", 1e-1: "100 ms"}
SHARES = (0, 25, 50, 75, 100)
COLOURS = ("#c4314b", "#1f6feb", "#1a7f37", "#9a6700", "#6e7781")


def picture(overshoots: Mapping[str, Sequence[float]]) -> str:
    """Draw an SVG.

    Args:
        overshoots: By the way of waiting, in the order of the legend: seconds from each landing to
            the return.
    """
    parts = [
        f'<svg {FONT} xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *(_line(x(at), y(0), x(at), y(100)) for at in SECONDS),
        *(_line(x(SHORTEST_S), y(share), x(LONGEST_S), y(share)) for share in SHARES),
        *(_text(x(at), y(0) + 18, text, "middle") for at, text in SECONDS.items()),
        *(_text(x(SHORTEST_S) - 8, y(share) + 4, f"{share} %", "end") for share in SHARES),
        _text((x(SHORTEST_S) + x(LONGEST_S)) / 2, HEIGHT - 8, "from landing to return", "middle"),
    ]
    for number, (name, seconds) in enumerate(overshoots.items()):
        colour, height = COLOURS[number % len(COLOURS)], TOP + 20 + 20 * number
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{_curve(seconds)}"/>'
        )
        edge = WIDTH - RIGHT + 16
        parts.append(_line(edge, height - 4, edge + 20, height - 4, colour, 2))
        parts.append(_text(edge + 28, height, name))
    return "\n".join([*parts, "</svg>", ""])


def x(seconds: float) -> float:
    """Where a time stands, on a logarithmic axis; what is beyond it at its end."""
    inside = min(max(seconds, SHORTEST_S), LONGEST_S)
    share = math.log(inside / SHORTEST_S) / math.log(LONGEST_S / SHORTEST_S)
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def y(share: float) -> float:
    """Where a share in percent stands."""
    return HEIGHT - BOTTOM - share / 100 * (HEIGHT - TOP - BOTTOM)


def _curve(seconds: Sequence[float]) -> str:
    """The points of one way of waiting: the share that had returned, by the time."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    ranks = sorted({round(last * step / POINTS) for step in range(POINTS + 1)})
    shares = {rank: 100 * (rank + 1) / len(ordered) for rank in ranks}
    return " ".join(f"{x(ordered[rank]):.1f},{y(share):.1f}" for rank, share in shares.items())


def _line(
    x1: float, y1: float, x2: float, y2: float, colour: str = "#d0d7de", width: float = 1
) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{width:g}"/>'
    )


def _text(at_x: float, at_y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{at_x:.1f}" y="{at_y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
