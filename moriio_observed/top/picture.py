"""All that is shown at one moment, worst first."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from moriio_observed.doctor.findings import Severity
from moriio_observed.top.alerts import Alerts
from moriio_observed.top.engine import ALL_SITES, Engine, Look, engine
from moriio_observed.top.history import History
from moriio_observed.top.signs import Sign, signs, standing
from moriio_observed.top.snapshot import Series, of_engines


class State(enum.IntEnum):
    """How an engine, or a server, is; a higher number is worse."""

    OK = 0
    UNOBSERVED = 1
    """It answers, without numbers of ours."""
    WARNING = 2
    SILENT = 3
    """Nothing is known of it."""
    CRITICAL = 4
    """Wrong answers are, or soon will be, served."""


_OF_SEVERITY = {
    Severity.NOTE: State.OK,
    Severity.WARNING: State.WARNING,
    Severity.CRITICAL: State.CRITICAL,
}


@dataclass(frozen=True)
class Row:
    """One engine, or a server none of whose engines is known.

    Attributes:
        url: Its server's address.
        name: What it is called.
        state: How it is.
        trouble: Why nothing is known of it; empty where there are figures.
        engine: Its figures; None where there are none.
        signs: What is wrong with it, worst first.
    """

    url: str
    name: str
    state: State
    trouble: str = ""
    engine: Engine | None = None
    signs: tuple[Sign, ...] = ()


@dataclass(frozen=True)
class Picture:
    """What is shown.

    Attributes:
        at: When.
        rows: Worst first.
        alerts: What a Prometheus says of our alerts; None if none was asked.
    """

    at: datetime
    rows: tuple[Row, ...]
    alerts: Alerts | None = None


def picture(
    histories: Iterable[History], now: float, at: datetime, alerts: Alerts | None = None
) -> Picture:
    """What is to be shown of these servers.

    Args:
        histories: What is known of them.
        now: Seconds of the clock of their snapshots.
        at: The same as a date.
        alerts: What a Prometheus says.
    """
    rows = [row for history in histories for row in _rows(history, now)]
    return Picture(at, tuple(sorted(rows, key=_order)), alerts)


def _rows(history: History, now: float) -> Iterator[Row]:
    name = history.url.partition("://")[2]
    if history.trouble or history.latest is None:
        yield Row(history.url, name, State.SILENT, history.trouble + _last(history, now))
        return
    engines = of_engines(history.latest.scrape)
    if not engines:
        why = " ".join(sign.what for sign in standing(Series(history.latest.scrape)))
        yield Row(history.url, name, State.UNOBSERVED, why)
    gained = of_engines(history.gained) if history.gained else None
    before = of_engines(history.earlier.scrape) if history.earlier else {}
    for key, series in engines.items():
        added = None if gained is None else gained.get(key, Series())
        look = Look(series, added, history.seconds)
        figures = engine(key, look, history, now)
        found = signs(figures, look, before.get(key))
        yield Row(
            history.url,
            name if len(engines) == 1 else f"{name} {key.engine or key.model_name}",
            _OF_SEVERITY[max((sign.severity for sign in found), default=Severity.NOTE)],
            engine=figures,
            signs=tuple(found),
        )


def _last(history: History, now: float) -> str:
    if history.latest is None:
        return ""
    return f" (last seen {now - history.latest.at:.0f} s ago)"


def _order(row: Row) -> tuple[float, float, float, str]:
    """Worst first; among equals the one that exposes, or makes its requests wait, most."""
    figures = row.engine
    if figures is None:
        return (-row.state, 0.0, 0.0, row.name)
    exposed = sum(counted.per_s or 0.0 for counted in figures.exposed.values())
    waits = figures.waits.get(ALL_SITES)
    return (-row.state, -exposed, -(waits.p99 or 0.0 if waits else 0.0), row.name)
