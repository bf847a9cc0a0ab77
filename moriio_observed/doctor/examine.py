"""All that the doctor was given, looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from moriio_observed.doctor import prometheus, server
from moriio_observed.doctor.checks import log, of_engines, router, scrape
from moriio_observed.doctor.checks import server as of_server
from moriio_observed.doctor.engines import Engine
from moriio_observed.doctor.findings import Finding, worst_first
from moriio_observed.doctor.incidents import group
from moriio_observed.doctor.inputs import named, version_installed
from moriio_observed.doctor.log_lines import Lines, events
from moriio_observed.doctor.read import Address, lines_of


@dataclass(frozen=True)
class Case:
    """What there is to look at.

    Attributes:
        engines: Engines, as they are configured.
        version: The vLLM that was named; None if none was.
        servers: Running servers.
        prometheus: A Prometheus; None if none was named.
        logs: vLLM logs.
        router: The command that starts the router; empty if none was given.
    """

    engines: Sequence[Engine] = ()
    version: str | None = None
    servers: Sequence[Address] = ()
    prometheus: Address | None = None
    logs: Sequence[str] = ()
    router: Sequence[str] = field(default=())


def examine(case: Case) -> list[Finding]:
    """Everything there is to say, worst first.

    Raises:
        InputError: A log cannot be read.
    """
    return worst_first(_findings(case))


def _findings(case: Case) -> Iterator[Finding]:
    servers = [server.ask(address) for address in case.servers]
    running = next((found.version for found in servers if found.version), None)
    version = running or case.version or version_installed()
    engines = named(replace(engine, version=version) for engine in case.engines)
    yield from of_engines(engines)
    if case.router:
        yield from router.check(case.router, engines)
    for found in servers:
        yield from of_server.versions(found, case.version)
        yield from of_server.check(found, engines)
    yield from of_server.deadlines(servers)
    if case.prometheus is not None:
        stored = prometheus.ask(case.prometheus, scrape.wanted(servers))
        yield from scrape.check(stored, servers)
    for path in case.logs:
        lines = Lines(lines_of(path, "--log"))
        incidents = group(events(lines))
        yield from log.check(path, incidents)
        if not incidents and not lines.are_vllms:
            yield log.unrecognised(path)
