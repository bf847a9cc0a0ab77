"""The time that a dashboard shows, and what follows from it for its queries."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from moriio_observed.dashboarding.errors import DashboardsError

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(?:\d{1,9}[smhdw])+", re.ASCII)
_SECONDS_SINCE_1970 = re.compile(r"[-+]?\d+(\.\d*)?", re.ASCII)
_PART = re.compile(r"(\d+)([smhdw])")


@dataclass(frozen=True, slots=True)
class Window:
    """The time that a dashboard shows.

    Attributes:
        start: Where it begins, in seconds since 1970.
        end: Where it ends.
        scrape_interval: How often Prometheus scrapes, in seconds: nothing is asked more densely.
    """

    start: float
    end: float
    scrape_interval: float = 15.0

    def __post_init__(self) -> None:
        if self.start < 0:
            raise DashboardsError("the time shown begins before 1970")
        if self.start >= self.end:
            raise DashboardsError(
                f"the time shown begins at {_text(self.start)}, which is not before its end"
            )

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.start

    def step(self, points: int) -> float:
        """Return the seconds between two points of a panel that has room for so many."""
        return self.scrape_interval * max(
            1, math.ceil(self.seconds / points / self.scrape_interval)
        )

    def rate_interval(self, step: float) -> float:
        """Return Grafana's `$__rate_interval` for a step: always four scrapes at least."""
        return max(step + self.scrape_interval, 4 * self.scrape_interval)

    def times(self, step: float) -> list[float]:
        """Return the points asked for: multiples of the step, as in Grafana."""
        first = math.floor(self.start / step)
        return [number * step for number in range(first, math.floor(self.end / step) + 1)]


def in_seconds(duration: str) -> int:
    """Return the length of a duration as Prometheus writes them, such as `90s` or `1h30m`.

    Raises:
        DashboardsError: It is none, or 0.
    """
    parts = _PART.findall(duration) if _DURATION.fullmatch(duration) else ()
    seconds = sum(int(number) * _SECONDS[unit] for number, unit in parts)
    if not seconds:
        raise DashboardsError(f"{duration!r} is no duration: write it like 30m, 1h30m or 2d")
    return seconds


def at(moment: str) -> float:
    """Return a moment in seconds since 1970: written so, or as a date, which is UTC if it is bare.

    Raises:
        DashboardsError: It is neither.
    """
    try:
        return _of_seconds(moment) if _SECONDS_SINCE_1970.fullmatch(moment) else _of_date(moment)
    except (ValueError, OverflowError, OSError):
        raise DashboardsError(
            f"{moment!r} is no moment: write it like 2026-11-30T09:00 or in seconds since 1970"
        ) from None


def _of_seconds(text: str) -> float:
    seconds = float(text)
    datetime.fromtimestamp(seconds, UTC)  # which not every number is
    return seconds


def _of_date(text: str) -> float:
    date = datetime.fromisoformat(text)
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def shown_by_itself(dashboard_time: str) -> int:
    """Return how far back a dashboard looks unless told otherwise, in seconds.

    Raises:
        DashboardsError: It does not begin at a distance from now.
    """
    if not dashboard_time.startswith("now-"):
        raise DashboardsError(
            f"the dashboard begins at {dashboard_time!r}, not at now-…: name a --range"
        )
    return in_seconds(dashboard_time.removeprefix("now-"))


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
