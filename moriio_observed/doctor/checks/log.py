"""The incidents of a log, told as findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from moriio_observed.doctor.findings import Finding, Place, Severity
from moriio_observed.doctor.incidents import Incident
from moriio_observed.doctor.messages import Kind
from moriio_observed.doctor.troubles import EXPOSURE, HUNG, READS_FAIL
from moriio_observed.traces.text import safe

LONGEST_NAME = 240
"""Characters of a name; a request id in the router's form has its own part at the end."""

SHOWN = 10
"""So many layers, requests, ranks or remotes are listed; the rest is counted."""

_LABELS = {
    "waited": "reads the barrier waited for",
    "open": "of them not landed",
    "deadline": "transfer_timeout, seconds",
    "age": "given up at, seconds",
    "limit": "limit, seconds",
    "reason": "reason",
    "code": "code",
    "count": "count",
    "heads": "KV heads",
    "local": "tensor-parallel size here",
    "remote_size": "tensor-parallel size there",
    "mode": "CUDA graph mode",
    "barrier": "barrier",
}


def check(path: str, incidents: Sequence[Incident]) -> Iterator[Finding]:
    """One finding for each incident."""
    for incident in incidents:
        trouble = incident.trouble
        yield Finding(
            trouble.name,
            _severity(incident, incidents),
            f"{_headline(incident)} ({_signs(incident)})",
            tuple(_where(path, incident)),
            trouble.why,
            trouble.do,
            trouble.see,
            path,
        )


def unrecognised(path: str) -> Finding:
    """What there is to say of a log that vLLM does not seem to have written."""
    return Finding(
        "log-unrecognised",
        Severity.WARNING,
        "no line of the log is as vLLM writes it",
        (Place("--log", path),),
        "That nothing was found in it says nothing: it is empty, compressed or another program's, "
        "or it was rewritten on its way.",
        "Give the log as the engine wrote it, such as WARNING 08-12 09:20:44 [moriio_connector.py:"
        "2720] …",
        ("docs/doctor.md#what-it-cannot-tell",),
        path,
    )


def _severity(incident: Incident, incidents: Sequence[Incident]) -> Severity:
    if incident.harmless:
        return Severity.NOTE
    exposures = [other for other in incidents if other.trouble is EXPOSURE]
    if (
        incident.trouble in (HUNG, READS_FAIL)
        and exposures
        and all(other.harmless for other in exposures)
    ):
        return Severity.WARNING  # a guard kept what came of it from going out
    return incident.trouble.severity


def _headline(incident: Incident) -> str:
    if incident.trouble is not HUNG:
        return incident.trouble.cause
    gave_up = incident.signs.keys() - {Kind.ABORT}
    if Kind.ABORT not in incident.signs:
        return incident.trouble.cause
    if not gave_up:
        return "a read hung and was given up at its abort limit"
    return "a hung read ran into the barrier's deadline, then into the abort limit"


def _signs(incident: Incident) -> str:
    return ", ".join(f"{number} x {kind.value}" for kind, number in incident.signs.items())


def _where(path: str, incident: Incident) -> Iterator[Place]:
    lines = str(incident.first_line)
    if incident.last_line != incident.first_line:
        lines += f" to {incident.last_line}"
    yield Place(f"{path} line", lines)
    if incident.first:
        yield Place("first", incident.first)
        yield Place("last", incident.last)
    for name, kept in (
        ("layers", incident.layers),
        ("requests", incident.requests),
        ("ranks", incident.ranks),
        ("remotes", incident.remotes),
        ("causes", incident.causes),
    ):
        if kept:
            yield Place(name, _listed(kept))
    for name, label in _LABELS.items():
        if incident.said.get(name):
            yield Place(label, safe(incident.said[name], LONGEST_NAME))
    if incident.releases:
        since, until = incident.releases
        span = since if since == until else f"{since} to {until}"
        yield Place("written so by vLLM", span)


def _listed(names: Mapping[str, None]) -> str:
    listed = [safe(name, LONGEST_NAME) for name in list(names)[:SHOWN]]
    more = len(names) - len(listed)
    return ", ".join(listed) + (f" and {more} more" if more else "")
