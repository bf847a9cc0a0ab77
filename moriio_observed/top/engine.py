"""The figures of one engine, from two looks at its server."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from moriio_observed.telemetry.catalog import CERTAINTIES, PREFIX, SITES
from moriio_observed.top.history import History
from moriio_observed.top.snapshot import RUNNING, Key, Series

PEERS = 3
RANK_SLOW_FACTOR = 3.0
RANK_SLOW_S = 0.005
"""A rank waits too long if it waits so many times the median of at least so many ranks, and by so
many seconds a step; as in the alert MoriioRankSlow."""
_INFO = f"{PREFIX}config_info"
_BLOCKED = f"{PREFIX}step_blocked_seconds"
_WAITS = f"{PREFIX}barrier_wait_seconds"
ALL_SITES = "all"


@dataclass(frozen=True, slots=True)
class Counted:
    """A counter.

    Attributes:
        gained: What it gained between the last two looks; None before the second.
        total: What it has counted since its process started.
        per_s: What it gained in a second; None before the second look.
    """

    gained: float | None
    total: float
    per_s: float | None


@dataclass(frozen=True, slots=True)
class Waits:
    """The barrier's waits at one site, between the last two looks.

    Attributes:
        count: How many barrier calls had reads to wait for.
        p50: The median wait in seconds; None without one.
        p99: The wait in seconds that one in a hundred exceeds; None without one.
    """

    count: float
    p50: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Rank:
    """One TP rank.

    Attributes:
        blocked_s: All barrier time of a step, on average between the last two looks, in seconds;
            None without steps that had reads.
        oldest_s: The age of its oldest read in flight, in seconds.
        slow: Whether it waits much longer than its peers do.
    """

    blocked_s: float | None
    oldest_s: float | None
    slow: bool = False


@dataclass(frozen=True)
class Engine:
    """What an engine says of itself.

    Attributes:
        key: Which of its server's engines it is.
        info: What is running: the labels of ``config_info``.
        seconds: The time between the last two looks; None before the second.
        restarted_s: How long ago its process was found to be another; None if it never was.
        requests: Requests that read.
        exposed: Exposed requests that were answered all the same, by cause.
        caught: Exposed requests that were not, by what became of them.
        unprotected: Unprotected steps, by certainty.
        waits: The barrier's waits by site, all of them under `ALL_SITES`.
        timeouts: Barrier calls that ran into their deadline.
        reads: Reads by what became of them: posted, landed, failed, aborted.
        in_flight: Reads in flight; None if it does not say, NaN if it does not know.
        oldest_s: The age of the oldest read in flight in seconds; likewise.
        deadline_s: The nearest deadline that such a read can meet, in seconds; None if unknown.
        ranks: Its TP ranks.
        held: Requests whose blocks it holds for decode engines; None if it does not say.
        released: Releases it has received.
        running: Requests that run on it, as vLLM says; None if it does not.
        quiet_s: Seconds since it was last seen to do a forward step.
    """

    key: Key
    info: Mapping[str, str]
    seconds: float | None
    restarted_s: float | None
    requests: Counted
    exposed: Mapping[str, Counted]
    caught: Mapping[str, Counted]
    unprotected: Mapping[str, Counted]
    waits: Mapping[str, Waits]
    timeouts: Counted
    reads: Mapping[str, Counted]
    in_flight: float | None
    oldest_s: float | None
    deadline_s: float | None
    ranks: Mapping[str, Rank]
    held: float | None
    released: Counted
    running: float | None
    quiet_s: float

    @property
    def sends(self) -> bool:
        """Whether it is on the side that is read from."""
        return self.info.get("role") == "kv_producer"

    @property
    def guarded(self) -> bool:
        """Whether a guard keeps what is exposed from being answered."""
        return self.info.get("guard", "report") != "report"


@dataclass(frozen=True)
class Look:
    """An engine's series, as the figures are made of them.

    Attributes:
        now: As they are.
        gained: What was counted between the last two looks; None before the second.
        seconds: The time between them; likewise.
    """

    now: Series
    gained: Series | None
    seconds: float | None

    def counted(self, name: str, **labels: str) -> Counted:
        """What a counter says."""
        gained = self.gained.total(PREFIX + name, **labels) if self.gained else None
        return self._counted(gained, self.now.total(PREFIX + name, **labels))

    def counted_by(self, name: str, label: str, **where: str) -> dict[str, Counted]:
        """What a counter says for each value of a label that it has ever counted."""
        gained = self.gained.by(PREFIX + name, label, **where) if self.gained else None
        return {
            text: self._counted(None if gained is None else gained.get(text, 0.0), total)
            for text, total in sorted(self.now.by(PREFIX + name, label, **where).items())
            if total > 0
        }

    def gauge(self, name: str) -> list[float]:
        """What a gauge says: one value for each of its series."""
        return self.now.values(PREFIX + name)

    def _counted(self, gained: float | None, total: float) -> Counted:
        if gained is None or not self.seconds:
            return Counted(gained, total, None)
        return Counted(gained, total, gained / self.seconds)


def engine(key: Key, look: Look, history: History, now: float) -> Engine:
    """The figures of an engine.

    Args:
        key: Which of its server's engines.
        look: Its series.
        history: What is known of its server.
        now: Seconds of the clock of the snapshots.
    """
    restarted = history.restarted_at
    gauge = look.gauge
    return Engine(
        key=key,
        info=next(
            (dict(labels) for _, labels in look.now.named(_INFO).samples),
            {},
        ),
        seconds=look.seconds,
        restarted_s=None if restarted is None else now - restarted,
        requests=look.counted("requests_total"),
        exposed=look.counted_by("exposed_requests_total", "cause", action="reported"),
        caught={
            action: counted
            for action, counted in look.counted_by("exposed_requests_total", "action").items()
            if action != "reported"
        },
        unprotected={
            certainty: look.counted("unprotected_steps_total", certainty=certainty)
            for certainty in CERTAINTIES
        },
        waits=_waits(look.gained) if look.gained else {},
        timeouts=look.counted("barrier_timeouts_total"),
        reads={
            what: look.counted(f"reads_{what}_total")
            for what in ("posted", "landed", "failed", "aborted")
        },
        in_flight=_all(sum, gauge("reads_in_flight")),
        oldest_s=_all(max, gauge("oldest_read_age_seconds")),
        deadline_s=_deadline(look),
        ranks=_ranks(look),
        held=_all(sum, gauge("deferred_sends")),
        released=look.counted("releases_total"),
        running=_all(sum, look.now.values(RUNNING)),
        quiet_s=now - history.stepped_at.get(key, now),
    )


def _waits(gained: Series) -> dict[str, Waits]:
    sites = {ALL_SITES: {}, **{site: {"site": site} for site in SITES}}
    return {
        name: Waits(
            gained.total(f"{_WAITS}_count", **where),
            gained.quantile(_WAITS, 0.5, **where),
            gained.quantile(_WAITS, 0.99, **where),
        )
        for name, where in sites.items()
    }


def _deadline(look: Look) -> float | None:
    """The nearest of the deadlines a read can meet, as the alerts have it."""
    known = [
        value
        for name in ("transfer_timeout_seconds", "recv_abort_timeout_seconds")
        for value in look.gauge(name)
        if value > 0 and math.isfinite(value)
    ]
    return min(known, default=None)


def _ranks(look: Look) -> dict[str, Rank]:
    oldest = look.now.by(f"{PREFIX}oldest_read_age_seconds", "tp_rank")
    gained = look.gained or Series()
    times = gained.by(f"{_BLOCKED}_sum", "tp_rank")
    counts = gained.by(f"{_BLOCKED}_count", "tp_rank")
    means = {rank: times.get(rank, 0.0) / count for rank, count in counts.items() if count > 0}
    median = statistics.median(means.values()) if len(means) >= PEERS else math.inf
    return {
        rank: Rank(
            means.get(rank),
            oldest.get(rank),
            rank in means and means[rank] > max(RANK_SLOW_FACTOR * median, median + RANK_SLOW_S),
        )
        for rank in sorted({*oldest, *counts}, key=lambda rank: (len(rank), rank))
    }


def _all(fold: Callable[[list[float]], float], values: list[float]) -> float | None:
    """Several series as one; None without one, and NaN where one is."""
    if not values:
        return None
    return math.nan if any(map(math.isnan, values)) else fold(values)
