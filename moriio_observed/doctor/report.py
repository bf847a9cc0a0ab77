"""Findings for a person, and for a machine."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from moriio_observed.doctor.findings import Finding, Severity, exit_status
from moriio_observed.traces.text import safe

LONGEST = 2000
"""So much of one text is shown, characters: a finding quotes what others have written."""

_STYLES = {Severity.CRITICAL: "bold red", Severity.WARNING: "bold yellow", Severity.NOTE: "bold"}
_INDENT = 4


def lines(findings: Sequence[Finding], *, notes: bool) -> Iterator[Text | Padding]:
    """What a person reads.

    Args:
        findings: Worst first.
        notes: Whether to show what nothing has to be done about.
    """
    shown = [finding for finding in findings if finding.severity.matters or notes]
    for finding in shown:
        yield from _told(finding)
    yield Text(_summary(findings, left_out=len(findings) - len(shown)))


def _told(finding: Finding) -> Iterator[Text | Padding]:
    head = Text.assemble((finding.severity.name, _STYLES[finding.severity]), "  ")
    head.append(_clean(finding.what), "bold")
    if finding.subject:
        head.append(f"  [{_clean(finding.subject)}]", "dim")
    yield head
    body = Table.grid(padding=(0, 2))
    body.add_column(style="dim")
    body.add_column(overflow="fold")
    for place in finding.where:
        body.add_row("where", Text(_clean(str(place))))
    for label, text in (("why", finding.why), ("do", finding.do)):
        if text:
            body.add_row(label, Text(_clean(text)))
    for link in finding.see:
        body.add_row("see", link)
    yield Padding(body, (0, 0, 1, _INDENT))


def _summary(findings: Sequence[Finding], *, left_out: int) -> str:
    counts = {
        severity: sum(finding.severity is severity for finding in findings) for severity in Severity
    }
    matter = counts[Severity.CRITICAL] + counts[Severity.WARNING]
    hidden = f" (--notes shows {left_out} more, nothing to do)" if left_out else ""
    if not matter:
        return f"Nothing found that matters.{hidden}"
    return f"{counts[Severity.CRITICAL]} critical, {counts[Severity.WARNING]} warning.{hidden}"


def as_json(findings: Sequence[Finding]) -> str:
    """What a machine reads."""
    return json.dumps(
        {"exit_status": exit_status(findings), "findings": list(map(_object, findings))},
        indent=2,
        ensure_ascii=False,
    )


def _object(finding: Finding) -> dict[str, Any]:
    return {
        "name": finding.name,
        "severity": finding.severity.name.lower(),
        "subject": _clean(finding.subject),
        "what": _clean(finding.what),
        "where": [
            {"key": _clean(place.key), "value": _clean(place.value)} for place in finding.where
        ],
        "why": _clean(finding.why),
        "do": _clean(finding.do),
        "see": list(finding.see),
    }


def _clean(text: str) -> str:
    return safe(text, LONGEST)
