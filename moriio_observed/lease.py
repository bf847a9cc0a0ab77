"""How long a prefill engine's answer is good for, told across hosts whose clocks disagree.

P puts a lease into the ``kv_transfer_params`` it answers with: it may recycle the blocks once the
lease has ended, so a read after that is a stale read. P's monotonic clock says when the lease was
issued, but D cannot read that clock; it can only see when leases arrive. For each prefill process
the least difference ever seen between arrival (D's monotonic clock) and issue (P's) is the offset
between the two clocks plus the least delay on the way, whatever the wall clocks of the hosts say.
A lease's age is how much it exceeds that least difference.

What this cannot know:

- A delay that every lease has (a router that holds each answer for 2 s) is taken for clock offset:
  ages are too small by the least delay there was.
- The first leases of a prefill process may all have come late, held up by the same thing. Until
  `SETTLED_AFTER` of them have been seen, over at least `SETTLED_OVER` times as long as a lease
  lasts, the hosts' wall clocks are taken to agree, and the greater of the two ages counts. If D's
  wall clock is ahead by more than a lease, the first ones look ended though they are not; if it is
  behind, as a negative difference proves, a late one among the first looks fresh.
- Clocks that drift apart make an age wrong by what they have drifted since the least difference
  was seen: that is forgotten after one to two windows of `WINDOW_S` in which enough leases came,
  later where there is little traffic. Two clocks that differ by 100 ppm drift 0.12 s in 1200 s.
- A host that was suspended has a monotonic clock that stood still meanwhile. If it was D's, leases
  it already held look younger by that time; if it was P's, ages are too great for a window or two.
- A lease is believed: a router that rewrites its numbers moves the offset of that process.
"""

from __future__ import annotations

import math
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["LEASE_KEY", "Clocks", "Issuer", "Lease"]

LEASE_KEY = "moriio_observed_lease"
"""The key of a lease in ``kv_transfer_params``."""

SETTLED_AFTER = 32
SETTLED_OVER = 5.0
"""So many leases of one prefill process must have been seen, over so many times as long as one
lasts, before the least difference is relied on alone: hosts whose clocks disagree by more than a
lease are rarer than a prefill engine that is only heard of when something is held up."""

ROLLED_AFTER = 5
"""Leases that must have come in a window before the one before it is forgotten."""

WINDOW_S = 600.0
"""The least difference is that of the current window of this length and the one before, seconds."""

MAX_CLOCKS = 1024
"""Prefill processes remembered; the one not heard of for longest is forgotten."""

_MAX_ID = 64
"""Longest name of a clock, characters."""


class Issuer:
    """Issues the leases of one prefill process.

    Args:
        wall: Seconds since the epoch.
        monotonic: This process's monotonic clock, seconds.

    Attributes:
        clock_id: A random name of this process's monotonic clock: a restarted P has another.
    """

    def __init__(
        self,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock_id = uuid.uuid4().hex
        self._wall = wall
        self._monotonic = monotonic

    def issue(self, good_for_s: float) -> dict[str, Any]:
        """A lease that begins now and lasts `good_for_s` seconds, ready for JSON."""
        return {
            "clock": self.clock_id,
            "issued_at": self._wall(),
            "issued_mono": self._monotonic(),
            "good_for_s": float(good_for_s),
        }


@dataclass(frozen=True, slots=True)
class Lease:
    """What a prefill engine has promised.

    Attributes:
        clock: Name of the issuer's monotonic clock.
        issued_at: When it was issued, in seconds since the epoch by the issuer's wall clock.
        issued_mono: The same by its monotonic clock, seconds.
        good_for_s: How long it lasts, seconds.
    """

    clock: str
    issued_at: float
    issued_mono: float
    good_for_s: float

    @classmethod
    def read(cls, params: Mapping[str, Any] | None) -> Lease | None:
        """The lease in a request's ``kv_transfer_params``; None if there is none to rely on.

        The parameters pass through routers: whatever is there, it raises nothing.
        """
        given = params.get(LEASE_KEY) if isinstance(params, Mapping) else None
        if not isinstance(given, Mapping):
            return None
        clock = given.get("clock")
        if not isinstance(clock, str) or not 0 < len(clock) <= _MAX_ID:
            return None
        issued_at, issued_mono, good_for_s = (
            _seconds(given.get(name)) for name in ("issued_at", "issued_mono", "good_for_s")
        )
        if issued_at is None or issued_mono is None or good_for_s is None:
            return None
        return cls(clock, issued_at, issued_mono, good_for_s)


def _seconds(value: object) -> float | None:
    """A finite number that is not negative, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        seconds = float(value)
    except OverflowError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None


class _Least:
    """The least difference between D's clock and that of one prefill process.

    Args:
        now: When the first window begins, by D's monotonic clock.
    """

    __slots__ = ("_before", "_first", "_newest", "_seen", "_seen_within", "_since", "_within")

    def __init__(self, now: float) -> None:
        self._first = now
        self._before = self._within = math.inf
        self._since = now
        self._newest = -math.inf
        self._seen = self._seen_within = 0

    def settled(self, now: float, lease_s: float) -> bool:
        """Whether enough leases have been seen to rely on it alone.

        Args:
            now: By D's monotonic clock.
            lease_s: How long a lease lasts.
        """
        return self._seen >= SETTLED_AFTER and now - self._first >= SETTLED_OVER * lease_s

    @property
    def value(self) -> float:
        """The least difference, seconds; infinite if none was seen."""
        return min(self._before, self._within)

    def see(self, issued: float, now: float) -> None:
        """Take in that a lease issued then, by P's clock, has arrived now, by D's."""
        if self._seen_within >= ROLLED_AFTER and now - self._since >= WINDOW_S:
            self._before, self._within = self._within, math.inf
            self._since, self._seen_within = now, 0
        self._within = min(self._within, now - issued)
        # The same lease again, or an older one, is no news of how fast leases come.
        self._seen += issued > self._newest
        self._seen_within += issued > self._newest
        self._newest = max(self._newest, issued)


class Clocks:
    """How old leases are, on a decode engine. To be called on one thread.

    Args:
        wall: Seconds since the epoch.
        monotonic: This host's monotonic clock, seconds.
        max_clocks: Prefill processes remembered.
    """

    def __init__(
        self,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        max_clocks: int = MAX_CLOCKS,
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._max_clocks = max_clocks
        self._least: OrderedDict[str, _Least] = OrderedDict()

    def arrived(self, lease: Lease) -> None:
        """A lease was first seen: to be called as early as it can be."""
        now = self._monotonic()
        least = self._least.setdefault(lease.clock, _Least(now))
        self._least.move_to_end(lease.clock)
        least.see(lease.issued_mono, now)
        if len(self._least) > self._max_clocks:
            self._least.popitem(last=False)

    def age(self, lease: Lease) -> float:
        """Seconds since the lease was issued, as well as can be told; never negative."""
        least = self._least.get(lease.clock)
        age = 0.0
        if least is not None:
            now = self._monotonic()
            age = max(age, now - lease.issued_mono - least.value)
            if least.settled(now, lease.good_for_s):
                return age
        return max(age, self._wall() - lease.issued_at)

    def left(self, lease: Lease) -> float:
        """Seconds until the lease ends; negative once it has."""
        return lease.good_for_s - self.age(lease)
