"""Exponential buckets, as OpenTelemetry defines them, for values of 0 and more.

At scale `s` the bucket `i` holds what is above `b**i` and at most `b**(i + 1)`, with
`b = 2**(2**-s)`: each scale less joins buckets two by two. Counting happens at one fixed scale;
only what leaves is made coarser, and no coarser than it must be. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

SCALE = 5
"""Of counting: 32 buckets for each doubling, so a bucket is 2.2 % wide."""

MOST_BUCKETS = 160
"""How many buckets leave at most: OpenTelemetry's own limit."""

# Bounds within one doubling, from 1/2: the mantissas of `math.frexp`.
_PER_DOUBLING = 1 << SCALE
_MANTISSAS = tuple(2 ** (step / _PER_DOUBLING - 1) for step in range(_PER_DOUBLING))


def index_of(value: float) -> int:
    """Return the index, at `SCALE`, of the bucket that holds a value above 0."""
    mantissa, exponent = math.frexp(value)
    return (exponent - 1) * _PER_DOUBLING + bisect_left(_MANTISSAS, mantissa) - 1


@dataclass(frozen=True, slots=True)
class Exponential:
    """Observations counted in exponential buckets.

    Attributes:
        scale: Of the buckets.
        zero_count: Observations of 0.
        offset: Index of the first bucket.
        counts: Observations per bucket, from that on.
        sum: Of all observations.
    """

    scale: int
    zero_count: int
    offset: int
    counts: tuple[int, ...]
    sum: float

    @classmethod
    def of_cells(
        cls, cells: Mapping[int, int], zero_count: int, total: float, *, scale: int = SCALE
    ) -> Exponential:
        """Make one of counts by index, at `scale` or as much coarser as `MOST_BUCKETS` asks for."""
        held = {index: n for index, n in cells.items() if n}
        if not held:
            return cls(scale, zero_count, 0, (), total)
        low, high = min(held), max(held)
        shift = 0
        while (high >> shift) - (low >> shift) >= MOST_BUCKETS:
            shift += 1
        counts = [0] * ((high >> shift) - (low >> shift) + 1)
        for index, n in held.items():
            counts[(index >> shift) - (low >> shift)] += n
        return cls(scale - shift, zero_count, low >> shift, tuple(counts), total)

    @property
    def count(self) -> int:
        """How many observations there are."""
        return self.zero_count + sum(self.counts)

    def plus(self, other: Exponential) -> Exponential:
        """Return the observations of both."""
        return self._combined(other, 1)

    def minus(self, earlier: Exponential) -> Exponential:
        """Return the observations made since an earlier state of the same series."""
        return self._combined(earlier, -1)

    def _combined(self, other: Exponential, sign: int) -> Exponential:
        scale = min(self.scale, other.scale)
        cells = Counter(self._cells(scale))
        for index, n in other._cells(scale).items():
            cells[index] += sign * n
        return Exponential.of_cells(
            cells,
            self.zero_count + sign * other.zero_count,
            self.sum + sign * other.sum,
            scale=scale,
        )

    def _cells(self, scale: int) -> Mapping[int, int]:
        cells: Counter[int] = Counter()
        for place, n in enumerate(self.counts):
            cells[(self.offset + place) >> (self.scale - scale)] += n
        return cells
