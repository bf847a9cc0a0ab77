"""What the rules take for granted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PER_TARGET = ("job", "instance")
"""The labels that every query must be matched with, by the variable of the same name."""
PER_CANARY = ("target",)
"""The same for what a canary tells: its own job and instance are nobody's concern."""


@dataclass(frozen=True, slots=True)
class Known:
    """What dashboards may refer to.

    Attributes:
        target: Labels that Prometheus adds to every series.
        recorded: The expression of each recording rule by its name.
        runbooks: The alerts that have a runbook.
    """

    target: frozenset[str]
    recorded: Mapping[str, str]
    runbooks: frozenset[str]
