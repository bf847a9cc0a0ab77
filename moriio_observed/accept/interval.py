"""The ratio of two engines' throughputs, by pairs of runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

FEWEST_PAIRS = 10
REACHED, WIDTH = 0.99, 0.04
"""What a throughput's interval must reach, and how wide it may be."""


class Interval(NamedTuple):
    """The geometric mean of the pairs' ratios, in its 95 % interval."""

    low: float
    ratio: float
    high: float

    @property
    def reaches(self) -> bool:
        """Whether ours may do about as much as the other."""
        return self.high >= REACHED

    @property
    def narrow(self) -> bool:
        """Whether that says something."""
        return self.high - self.low <= WIDTH


def interval(ours: Sequence[float], other: Sequence[float]) -> Interval:
    """Compare pairs of runs.

    Args:
        ours: What ours did in each pair, above 0; two of them at least.
        other: What the other one did.
    """
    logs = [math.log(one / two) for one, two in zip(ours, other, strict=True)]
    middle = statistics.fmean(logs)
    half = student_t(len(logs)) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(*(math.exp(middle + step) for step in (-half, 0.0, half)))


def student_t(samples: int) -> float:
    """Student's t for a two-sided 95 % interval of so many samples, rounded up.

    Raises:
        ValueError: One sample has no interval.
    """
    if samples < 2:
        raise ValueError(f"an interval needs two samples at least, not {samples}")
    if samples - 2 < len(_T_OF_FEW):
        return _T_OF_FEW[samples - 2]
    return 2.27 if samples < 30 else 2.05


_T_OF_FEW = (12.71, 4.31, 3.19, 2.78, 2.58, 2.45, 2.37, 2.31)
"""Of two to nine samples."""
