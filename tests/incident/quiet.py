"""How quiet a machine was while a pair was recorded on it; nothing is judged by it but itself."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Measure:
    """Something that is small on a machine with nothing else to do.

    Attributes:
        what: In words.
        bound: Above it a recording counts as disturbed.
        form: How a value is written.
    """

    what: str
    bound: float
    form: str


SCRAPE_LATE = Measure("a scrape began late by", 1.0, "{:.2f} s")
SCRAPE_TOOK = Measure("a scrape took", 2.0, "{:.2f} s")
LOG_UNSEEN = Measure("the log was not looked at for", 0.5, "{:.2f} s")
UNANSWERED = Measure("nobody was answered for", 3.0, "{:.1f} s")
OTHERS = Measure("other programs had of the machine", 0.15, "{:.0%}")
STOLEN = Measure("its host had of the machine", 0.05, "{:.0%}")


class Quiet:
    """Keeps the worst of each measure, from several threads."""

    def __init__(self) -> None:
        self._worst: dict[Measure, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def saw(self, measure: Measure, value: float, at_s: float) -> None:
        """Note a value, and when it was, seconds since the recording began."""
        with self._lock:
            self._worst[measure] = max(self._worst.get(measure, (0.0, 0.0)), (value, at_s))

    def about(self) -> Mapping[str, str]:
        """Return the worst of each measure in words, and those of them that are over a bound."""
        with self._lock:
            said = {
                measure: f"{measure.what} {measure.form.format(value)} (at {at_s:.0f} s)"
                for measure, (value, at_s) in self._worst.items()
            }
            over = [said[each] for each, (value, _) in self._worst.items() if value > each.bound]
        return {"at worst": ", ".join(said.values()), "disturbed": ", ".join(over) or "no"}


class Machine:
    """Who had the machine's time: this program and what it started, others, or its host."""

    def __init__(self) -> None:
        self._before = _spent()

    def beat(self) -> tuple[float, float]:
        """Return the shares that others and the host have had since the last beat, 0 … 1."""
        now = _spent()
        total, busy, own, stolen = (
            later - sooner for later, sooner in zip(now, self._before, strict=True)
        )
        self._before = now
        return (max(0.0, busy - own) / total, stolen / total) if total > 0 else (0.0, 0.0)


def _spent() -> tuple[float, float, float, float]:
    """Seconds since the machine started: all there were, those of programs, ours, the host's."""
    # Ours are read last, so that what we do while we look is not put down to others.
    all_ = psutil.cpu_times()
    me = psutil.Process()
    own = sum(map(_spent_by, [me, *me.children(recursive=True)]))
    # A guest's time is in its host's user time already.
    total = sum(all_) - all_.guest - all_.guest_nice
    return total, all_.user + all_.nice + all_.system, own, all_.steal


def _spent_by(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
