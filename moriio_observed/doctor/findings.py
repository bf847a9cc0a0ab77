"""What the doctor finds: how bad, where, why it matters and what to do."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Severity(enum.IntEnum):
    """How bad a finding is; a higher number is worse."""

    NOTE = 0
    """Worth knowing; nothing has to be done."""
    WARNING = 1
    """Something is wrong, missing, or waits for the next incident."""
    CRITICAL = 2
    """Wrong answers are or can be served at any time, or the engine does not start."""

    @property
    def matters(self) -> bool:
        """Whether somebody has to do something."""
        return self is not Severity.NOTE


@dataclass(frozen=True, slots=True)
class Place:
    """A key of the input, or a line of it, and its value.

    Attributes:
        key: The path of the key, the option, the variable, the metric or the file.
        value: What stands there, as text; empty where nothing does.
    """

    key: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.key} = {self.value}" if self.value else self.key


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the doctor has found.

    Attributes:
        name: Its name, for machines; the same from release to release.
        severity: How bad it is.
        what: What is wrong, in one sentence.
        where: What of the input says so.
        why: Why it matters.
        do: What to do.
        see: Documents or runbooks, as paths in the repository.
        subject: Which engine, server or file it is about.
    """

    name: str
    severity: Severity
    what: str
    where: tuple[Place, ...] = ()
    why: str = ""
    do: str = ""
    see: tuple[str, ...] = ()
    subject: str = ""


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """The findings in the order they should be dealt with."""
    return sorted(findings, key=lambda finding: -finding.severity)


def exit_status(findings: Iterable[Finding]) -> int:
    """1 where a finding matters, else 0."""
    return int(any(finding.severity.matters for finding in findings))


def runbook(alert: str) -> str:
    """The path of an alert's runbook."""
    return f"alerts/runbooks/{alert}.md"
