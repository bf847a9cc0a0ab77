"""Our alerts in a Prometheus: which are firing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moriio_observed.doctor.read import Address, Unreachable, json_page

OURS = "Moriio"
"""How the names of our alerts begin."""
FIRING, PAGE = "firing", "page"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert.

    Attributes:
        name: Its name.
        state: ``firing`` or ``pending``.
        severity: ``page`` or ``ticket``.
        instance: What it is about; empty for one about a fleet.
        summary: What it says.
        since: When it became active, as Prometheus writes it.
    """

    name: str
    state: str
    severity: str
    instance: str
    summary: str
    since: str


@dataclass(frozen=True, slots=True)
class Alerts:
    """What a Prometheus says.

    Attributes:
        url: Its address.
        active: Our alerts that fire, then those that are about to; pages first.
        trouble: Why it did not say; empty if it did.
    """

    url: str
    active: tuple[Alert, ...] = ()
    trouble: str = ""


def ask(address: Address, timeout_s: float) -> Alerts:
    """Ask a Prometheus for our alerts."""
    url = address.url
    try:
        answer = json_page(address, "/api/v1/alerts", timeout_s)
    except Unreachable as error:
        return Alerts(url, trouble=str(error))
    if answer.get("status") != "success":
        return Alerts(url, trouble=f"{url} does not tell its alerts: {answer.get('error', '')}")
    return Alerts(url, tuple(sorted(_ours(answer), key=_order)))


def _ours(answer: Mapping[str, Any]) -> Iterator[Alert]:
    listed = _mapping(answer.get("data")).get("alerts")
    for alert in map(_mapping, listed if isinstance(listed, list) else ()):
        labels, annotations = _mapping(alert.get("labels")), _mapping(alert.get("annotations"))
        name = str(labels.get("alertname", ""))
        if name.startswith(OURS):
            yield Alert(
                name,
                str(alert.get("state", "")),
                str(labels.get("severity", "")),
                str(labels.get("instance", "")),
                str(annotations.get("summary", "")),
                str(alert.get("activeAt", "")),
            )


def _order(alert: Alert) -> tuple[bool, bool, str, str]:
    return (alert.state != FIRING, alert.severity != PAGE, alert.since, alert.name)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
