"""When the next round is due."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

LONGEST_FACTOR = 8
"""While the server is busy or silent, pauses grow up to so many times the interval."""


@dataclass
class Schedule:
    """Pauses between rounds: never in step with anything else, longer where nobody answers.

    Attributes:
        interval_s: The mean pause, seconds.
        jitter: The share of it by which a pause is shorter or longer, by chance.
        draw: Chance.
    """

    interval_s: float
    jitter: float
    draw: random.Random = field(default_factory=random.Random)
    _put_off: int = field(default=0, init=False)

    def pause(self, *, answered: bool) -> float:
        """Seconds until the next round.

        Args:
            answered: Whether the last round was let in and got answers.
        """
        self._put_off = 0 if answered else self._put_off + 1
        factor = min(1 << self._put_off, LONGEST_FACTOR)
        return self.interval_s * factor * self.draw.uniform(1 - self.jitter, 1 + self.jitter)
