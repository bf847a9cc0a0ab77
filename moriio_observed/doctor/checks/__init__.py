"""One module for each kind of check: what it is given, as findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moriio_observed.doctor.checks import (
    connector,
    deadlines,
    graphs,
    guard,
    names,
    parallel,
    ports,
    settings,
    telemetry,
    unread,
)
from moriio_observed.doctor.engines import Engine
from moriio_observed.doctor.findings import Finding

__all__ = ["of_engines"]

_OF_ONE = (
    connector.check,
    names.check,
    settings.check,
    graphs.check,
    guard.check,
    telemetry.check,
    unread.check,
)
_OF_ALL = (deadlines.check, ports.check, parallel.check)


def of_engines(engines: Sequence[Engine]) -> Iterator[Finding]:
    """What is wrong with each engine, and with them together."""
    for engine in engines:
        for check_one in _OF_ONE:
            yield from check_one(engine)
    for check_all in _OF_ALL:
        yield from check_all(engines)
