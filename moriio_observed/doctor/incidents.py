"""Events of a log that belong together, and what they were the signs of."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from moriio_observed.doctor.log_lines import Event
from moriio_observed.doctor.messages import Kind
from moriio_observed.doctor.troubles import HUNG, READS_FAIL, TROUBLES, Trouble

OWN_LINES = frozenset({Kind.EXPOSED, Kind.PHANTOM, Kind.STALE})
HARMLESS = frozenset({"prevented", "recomputed", "failed"})
"""Actions after which no wrong token was served."""

QUIET = timedelta(minutes=5)
"""After so long without a sign the next is another incident: the abort of a hung read comes
`recv_abort_timeout` (two minutes) after its first."""

MOST_KEPT = 1000
"""So many requests, layers, ranks or remotes of one incident are kept by name."""


@dataclass
class Incident:
    """Signs of one trouble, none of them long after the one before.

    Attributes:
        trouble: Which.
        signs: How often each kind of message stood in the log.
        first: When it began, as the log has it; empty where the log has no times.
        last: When its last sign came.
        first_line: Where in the log it began, from 1.
        last_line: Where its last sign stands.
        layers: The layers named, in the order they were.
        requests: The requests named.
        ranks: The ranks that said so, such as ``TP3``.
        remotes: The other engines named.
        causes: What our own lines give as the cause.
        said: What else the messages say, the first of each.
        served: How many of our own lines tell of a request that was served all the same.
        releases: The releases of vLLM that write all these messages; None where one is our own.
    """

    trouble: Trouble
    first: str
    last: str
    first_line: int
    last_line: int
    signs: dict[Kind, int] = field(default_factory=dict)
    layers: dict[str, None] = field(default_factory=dict)
    requests: dict[str, None] = field(default_factory=dict)
    ranks: dict[str, None] = field(default_factory=dict)
    remotes: dict[str, None] = field(default_factory=dict)
    causes: dict[str, None] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    served: int = 0
    releases: tuple[str, str] | None = None

    def add(self, event: Event) -> None:
        """Count one more sign."""
        self.last, self.last_line = event.shown, event.line
        self.signs[event.kind] = self.signs.get(event.kind, 0) + 1
        facts = dict(event.fields)
        for details in event.details.values():
            facts = details | facts
        ours = _own_line(facts.pop("facts", ""))
        _keep(self.layers, facts.pop("layer", ""), *ours.layers)
        _keep(self.requests, facts.pop("request", ""), ours.request)
        _keep(self.remotes, facts.pop("remote", ""))
        _keep(self.ranks, event.rank)
        _keep(self.causes, ours.cause)
        if event.kind in OWN_LINES and ours.action not in HARMLESS:
            self.served += 1
        self.said = facts | self.said
        self._narrow(event)

    @property
    def harmless(self) -> bool:
        """Whether all of it is our own lines, and none of their requests was served wrong."""
        return not self.served and self.signs.keys() <= OWN_LINES

    def _narrow(self, event: Event) -> None:
        since, until = event.message.since, event.message.until
        if since:
            known = self.releases or (since, until)
            self.releases = (max(known[0], since), min(known[1], until))


def group(events: Iterable[Event]) -> list[Incident]:
    """The incidents of a log, in the order they began."""
    incidents: list[Incident] = []
    going_on: dict[str, tuple[Incident, Event]] = {}
    for event in list(events):  # all of them first: details of a barrier's message come after it
        trouble = _trouble(event)
        incident, before = going_on.get(trouble.name, (None, event))
        if incident is None or _long_after(event, before):
            incident = Incident(trouble, event.shown, event.shown, event.line, event.line)
            incidents.append(incident)
        incident.add(event)
        going_on[trouble.name] = (incident, event)
    return incidents


def _trouble(event: Event) -> Trouble:
    if event.kind in (Kind.LAYER_GAVE_UP, Kind.STEP_GAVE_UP, Kind.STEP_FAILED, Kind.HYBRID_FAILED):
        failed = Kind.FAILED in event.details and Kind.TIMED_OUT not in event.details
        return READS_FAIL if failed else HUNG
    return TROUBLES[event.kind]


def _long_after(event: Event, before: Event) -> bool:
    return event.at is not None and before.at is not None and event.at - before.at > QUIET


def _keep(kept: dict[str, None], *names: str) -> None:
    for name in names:
        if name and len(kept) < MOST_KEPT:
            kept[name] = None


@dataclass(frozen=True, slots=True)
class _OwnLine:
    """What one of our own log lines says: JSON behind its name."""

    request: str = ""
    cause: str = ""
    action: str = ""
    layers: tuple[str, ...] = ()


def _own_line(text: str) -> _OwnLine:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return _OwnLine()
    if not isinstance(said, dict):
        return _OwnLine()
    request, cause, action = (str(said.get(name, "")) for name in ("request_id", "cause", "action"))
    layers = said.get("layers")
    named = tuple(map(str, layers)) if isinstance(layers, list) else ()
    return _OwnLine(request, cause, action, named)
