"""Numbers as short as a column."""

from __future__ import annotations

import math

from moriio_observed.traces.text import duration

NONE = "-"
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def number(value: float | None) -> str:
    """A number of at most 6 characters, below a million of millions; what is not 0 never looks it.

    Without a value it is a dash, and a question mark where the engine itself does not know.
    """
    if value is None:
        return NONE
    if not math.isfinite(value):
        return "?"
    if 0 < value < 0.05:
        return "<0.1"
    for size, unit in _UNITS:
        # As it would be shown: 999.6 is a thousand.
        if abs(value) >= size * 0.9995:
            return _three_digits(value / size) + unit
    return _three_digits(value).removesuffix(".0")


def _three_digits(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 99.95 else f"{value:.0f}"


def seconds(value: float | None) -> str:
    """A time of at most 8 characters, below a day; a dash and a question mark as for a number."""
    if value is None:
        return NONE
    if not math.isfinite(value):
        return "?"
    return "0 s" if value == 0 else duration(value * 1e9)
