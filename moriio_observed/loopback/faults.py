"""Injected faults: which posts a rule hits, and what then becomes of them.

That is a function of the seed and the post's place (request ordinal, layer, attempt) alone, so
a run repeats whatever the threads do.
"""

import hashlib
import math
from dataclasses import dataclass

from moriio_observed.loopback.enums import StatusCode
from moriio_observed.loopback.places import Place

NEVER = math.inf


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one transfer.

    Attributes:
        delay_s: Seconds from posting to copying; `NEVER` for a hang.
        bytes_per_s: Bandwidth, counted per transfer; none means unlimited.
        error: Code and message to end with instead of copying.
        rejected: The post is refused at once with `error`, as by a full send queue.
    """

    delay_s: float = 0.0
    bytes_per_s: float | None = None
    error: tuple[StatusCode, str] | None = None
    rejected: bool = False

    def seconds(self, size: int) -> float:
        """Return the seconds from posting `size` bytes to their landing."""
        return self.delay_s + (size / self.bytes_per_s if self.bytes_per_s else 0.0)


NO_FAULT = Fault()
SQ_FULL = Fault(error=(StatusCode.ERR_RDMA_OP, "SQ full (injected by the loopback)"), rejected=True)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: whom it hits, and what it does to them. Absent selectors hit everything."""

    requests: frozenset[int] | None = None
    layers: frozenset[int] | None = None
    side: str | None = None
    probability: float = 1.0
    latency_s: float = 0.0
    jitter_s: float = 0.0
    bandwidth_bytes_per_s: float | None = None
    fail: tuple[StatusCode, str] | None = None
    sq_full_times: float = 0

    def selects(self, place: Place, side: str) -> bool:
        """Tell whether the rule may hit this post, chance aside."""
        return (
            (self.requests is None or place.request in self.requests)
            and (self.layers is None or place.layer in self.layers)
            and (self.side is None or side == self.side)
            and (not self.sq_full_times or place.attempt < self.sq_full_times)
        )

    def fault(self, jitter: float) -> Fault:
        """Return what the rule does, with `jitter` drawn from 0 … 1."""
        if self.sq_full_times:
            return SQ_FULL
        delay_s = self.latency_s + self.jitter_s * jitter
        return Fault(delay_s, self.bandwidth_bytes_per_s, self.fail)


@dataclass(frozen=True, slots=True)
class Plan:
    """The contents of one fault file."""

    rules: tuple[Rule, ...] = ()
    seed: int = 0
    reset_ordinals: bool = False

    def fault_for(self, place: Place, side: str) -> Fault:
        """Return the fault of the first rule that hits this post.

        Args:
            place: The post's place.
            side: What stands before the colon in the posting engine's key.
        """
        for index, rule in enumerate(self.rules):
            if rule.selects(place, side):
                chance, jitter = self._draw(index, place)
                if chance < rule.probability:
                    return rule.fault(jitter)
        return NO_FAULT

    def _draw(self, rule: int, place: Place) -> tuple[float, float]:
        key = f"{self.seed}/{rule}/{place.request}/{place.layer}/{place.attempt}"
        digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
        whole = 2.0**64
        return int.from_bytes(digest[:8]) / whole, int.from_bytes(digest[8:]) / whole
