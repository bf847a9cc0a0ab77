"""A canary that goes on: the golden answers read anew before each round, every round counted."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from moriio_observed.canary.counting import count
from moriio_observed.canary.errors import CanaryError
from moriio_observed.canary.golden import Golden, read
from moriio_observed.canary.metrics import CanaryMetrics
from moriio_observed.canary.rounds import Prober, Round


@dataclass(frozen=True)
class Ended:
    """A round that has ended.

    Attributes:
        round: What it brought.
        seconds: How long it took.
        at: When it ended, Unix seconds.
        trouble: Why no probe could be sent; None: they were.
    """

    round: Round
    seconds: float
    at: float
    trouble: str | None = None


class Canary:
    """Probes a deployment round by round.

    Args:
        path: The file of golden answers. It may be replaced while the canary runs.
        prober: Makes what sends the rounds; raises CanaryError where golden answers do not fit.
        metrics: Where to count.

    Raises:
        CanaryError: There are no golden answers that fit.
    """

    def __init__(
        self, path: Path, prober: Callable[[Golden], Prober], metrics: CanaryMetrics
    ) -> None:
        self._path = path
        self._make = prober
        self._metrics = metrics
        self._take(read(path))

    def round(self) -> Ended:
        """Send one round."""
        began = time.monotonic()
        done, trouble = self._round()
        ended = Ended(done, time.monotonic() - began, time.time(), trouble)
        count(self._metrics, ended.round, ended.seconds, ended.at)
        return ended

    def _round(self) -> tuple[Round, str | None]:
        try:
            fresh = read(self._path)
            if fresh != self._golden:
                self._take(fresh)
        except CanaryError as error:
            self._metrics.set("golden_prompts", 0)
            return Round(()), str(error)
        self._metrics.set("golden_prompts", len(fresh.known))
        return self._prober.round(), None

    def _take(self, golden: Golden) -> None:
        self._prober = self._make(golden)
        self._golden = golden
        self._metrics.set("golden_prompts", len(golden.known))
