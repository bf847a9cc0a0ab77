"""What a Prometheus has of ours, and whether it scrapes a server."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moriio_observed.doctor.read import Address, Unreachable, json_page

TIMEOUT_S = 30.0
_NAMES = 'count by (__name__) ({{__name__=~"{pattern}"}})'


@dataclass(frozen=True)
class Target:
    """One thing a Prometheus scrapes.

    Attributes:
        url: Where.
        health: ``up``, ``down`` or ``unknown``.
        error: What went wrong the last time; empty if nothing.
    """

    url: str
    health: str
    error: str


@dataclass(frozen=True)
class Stored:
    """What a Prometheus has.

    Attributes:
        url: Its address.
        names: Names of its series, now, that end as ours do; None if it could not be asked.
        vllm: Whether it has vLLM's own.
        targets: What it scrapes; None where it does not say, as Mimir and Thanos do not.
        trouble: Why it could not be asked; empty if it could.
    """

    url: str
    names: frozenset[str] | None
    vllm: bool = False
    targets: tuple[Target, ...] | None = None
    trouble: str = ""


def ask(server: Address, names: Sequence[str]) -> Stored:
    """Ask a Prometheus for the metrics of these names, whatever was put in front of them."""
    # The end of a name survives a prefix; ours are long enough to be nobody else's.
    ends = sorted({name.removeprefix("moriio_") for name in names})
    try:
        found = frozenset(_now(server, f".*({'|'.join(ends)})"))
        vllm = bool(_now(server, "vllm:.+"))
    except Unreachable as error:
        return Stored(server.url, None, trouble=str(error))
    return Stored(server.url, found, vllm, _targets(server))


def _now(server: Address, pattern: str) -> list[str]:
    query = urllib.parse.urlencode({"query": _NAMES.format(pattern=pattern)})
    answer = json_page(server, f"/api/v1/query?{query}", TIMEOUT_S)
    if answer.get("status") != "success":
        reason = str(answer.get("error", ""))[:200]
        raise Unreachable(f"{server.url} does not answer a query: {reason}")
    return [
        str(series["metric"]["__name__"])
        for series in _list(_mapping(answer.get("data")).get("result"))
        if "__name__" in _mapping(_mapping(series).get("metric"))
    ]


def _targets(server: Address) -> tuple[Target, ...] | None:
    try:
        answer = json_page(server, "/api/v1/targets?state=active", TIMEOUT_S)
    except Unreachable:
        return None
    if answer.get("status") != "success":
        return None
    return tuple(_read_targets(_list(_mapping(answer.get("data")).get("activeTargets"))))


def _read_targets(targets: Sequence[Any]) -> Iterator[Target]:
    for target in map(_mapping, targets):
        url, health, error = (
            str(target.get(key, "")) for key in ("scrapeUrl", "health", "lastError")
        )
        yield Target(url, health, error)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else []
