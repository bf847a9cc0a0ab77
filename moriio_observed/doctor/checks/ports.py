"""Ports: missing, not numbers, or wanted twice on one host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from moriio_observed.config import CONFIG_PATH, shown
from moriio_observed.doctor.engines import EXTRA, Connector, Engine, number
from moriio_observed.doctor.findings import Finding, Place, Severity
from moriio_observed.doctor.versions import PORTS

HIGHEST = 65535
_NEEDED = ("http_port",)
_PROXY = ("proxy_ip", "proxy_ping_port")
_HTTP_DEFAULT = 8000


@dataclass(frozen=True, slots=True)
class Ports:
    """A run of ports that somebody listens on.

    Attributes:
        key: Which setting says so.
        first: The first.
        last: The last.
        host: On which host; empty if unknown.
        subject: Which engine.
    """

    key: str
    first: int
    last: int
    host: str
    subject: str

    def meets(self, other: Ports) -> bool:
        """Whether the two cannot both listen."""
        same_host = self.host == other.host or "" in (self.host, other.host)
        return same_host and self.first <= other.last and other.first <= self.last

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first} to {self.last}"


def check(engines: Sequence[Engine]) -> Iterator[Finding]:
    """Whether every port is one, and all that listen on a host can."""
    wanted: list[Ports] = []
    for engine in engines:
        for connector in engine.connectors:
            yield from _values(connector)
            yield from _ranks(connector)
            yield from _announced(connector)
            wanted += _wanted(connector)
    for one, other in combinations(wanted, 2):
        if one.meets(other):
            yield _conflict(one, other)


def _values(connector: Connector) -> Iterator[Finding]:
    extra, facts = connector.extra, connector.engine.facts
    needed = (*_NEEDED, *(_PROXY if facts is not None and facts.needs_proxy else ()))
    for key in needed:
        if key not in extra:
            yield Finding(
                "missing-key",
                Severity.CRITICAL,
                f"{EXTRA}.{key} is not given",
                (Place(connector.key(EXTRA, key), "not given"),),
                "MoRIIO has no default for it: the engine does not start.",
                f"Set {key}; http_port is the engine's own --port, proxy_* the router's.",
                ("docs/doctor.md#ports",),
                connector.engine.name,
            )
    for key in ("http_port", "handshake_port", "notify_port", "proxy_ping_port"):
        value = extra.get(key)
        if key not in extra or (not value and key in PORTS):
            continue
        port = number(value)
        lowest = 0 if key == "proxy_ping_port" else 1
        if port is None or port != int(port) or not lowest <= port <= HIGHEST:
            yield Finding(
                "bad-port",
                Severity.CRITICAL,
                f"{key} is no port",
                (Place(connector.key(EXTRA, key), shown(value)),),
                "The engine does not start, or nobody reaches it.",
                f"Set it to a number from 1 to {HIGHEST}; a number as text will do.",
                ("docs/doctor.md#ports",),
                connector.engine.name,
            )


def _ranks(connector: Connector) -> Iterator[Finding]:
    """Upstream listens on base + dp + tp, and dials base + dp * tp_size + tp."""
    engine = connector.engine
    tensor, data = engine.tensor_parallel, engine.local_data_parallel
    if tensor < 2 or data < 2:  # the two agree then
        return
    base = connector.port("handshake_port")
    yield Finding(
        "ranks-share-ports",
        Severity.CRITICAL,
        f"{tensor} tensor-parallel and {data} data-parallel ranks on one host want the same ports",
        (
            Place("--tensor-parallel-size", str(tensor)),
            Place("--data-parallel-size on this host", str(data)),
            Place(connector.key(EXTRA, "handshake_port"), str(base)),
        ),
        "Each rank listens on handshake_port + data-parallel rank + tensor-parallel rank, so that "
        f"rank (0, 1) and rank (1, 0) both want {(base or 0) + 1}; the other side dials "
        f"handshake_port + data-parallel rank x {tensor} + tensor-parallel rank. The same with "
        "notify_port.",
        "Use one of the two on a host: data-parallel ranks with tensor-parallel size 1, or one "
        "data-parallel rank for each host.",
        ("docs/doctor.md#ports",),
        engine.name,
    )


def _announced(connector: Connector) -> Iterator[Finding]:
    """The router sends requests to http_port; the engine listens on --port."""
    engine, announced = connector.engine, connector.port("http_port")
    port = number(engine.options.get("port") or _HTTP_DEFAULT)
    if not engine.whole_command or announced is None or port is None or announced == port:
        return
    yield Finding(
        "wrong-http-port",
        Severity.WARNING,
        f"the engine listens on {port:g} and tells the router {announced}",
        (
            Place("--port", engine.options.get("port") or f"{_HTTP_DEFAULT} (by default)"),
            Place(connector.key(EXTRA, "http_port"), str(announced)),
        ),
        "The router sends requests where nobody listens, unless something forwards them.",
        f"Set http_port to {port:g}.",
        ("docs/doctor.md#ports",),
        engine.name,
    )


def _wanted(connector: Connector) -> Iterator[Ports]:
    engine = connector.engine
    spread = engine.tensor_parallel + engine.local_data_parallel - 2
    where = (connector.host, engine.name)
    for key, more in (("handshake_port", spread), ("notify_port", spread), ("http_port", 0)):
        first = connector.port(key)
        if first is not None:
            yield Ports(connector.key(EXTRA, key), first, first + more, *where)
    settings = connector.settings
    if connector.is_ours and settings is not None:
        exporter = settings.exporter
        if exporter.enabled and exporter.port:
            last = exporter.port + spread
            key = connector.key(CONFIG_PATH, "exporter.port")
            yield Ports(key, exporter.port, last, *where)


def _conflict(one: Ports, other: Ports) -> Finding:
    both = one.subject == other.subject
    unknown = "" in (one.host, other.host)
    return Finding(
        "ports-in-conflict",
        Severity.NOTE if not both and unknown else Severity.CRITICAL,
        "two want the same ports"
        + (" of one host" if not unknown or both else ", if they run on one host"),
        (
            Place(f"{one.key} ({one.subject})", str(one)),
            Place(f"{other.key} ({other.subject})", str(other)),
        ),
        "Each rank takes the base port plus its own number. The second to bind fails, or its peer "
        "talks to the wrong one.",
        "Put them further apart than there are ranks. Engines on several hosts can be told apart "
        "by host_ip.",
        ("docs/doctor.md#ports",),
        one.subject if both else f"{one.subject}, {other.subject}",
    )
