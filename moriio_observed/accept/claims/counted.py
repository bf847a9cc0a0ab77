"""What several claims need: the counters that stand beside the answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

from moriio_observed.accept.facts import Facts, Number
from moriio_observed.accept.verdicts import Ruling, not_proven

TOLD: tuple[tuple[str, dict[str, str]], ...] = (
    ("exposed_requests_total", {"action": "reported"}),
    ("phantom_hits_total", {"action": "reported"}),
    ("stale_reads_total", {}),
    ("late_landings_total", {"quarantined": "false"}),
)
"""Counters that explain a wrong answer."""


def by_counters(judge: Callable[[Facts], Ruling]) -> Callable[[Facts], Ruling]:
    """Judges only where what was counted during the probes is known."""

    @wraps(judge)
    def judged(facts: Facts) -> Ruling:
        return not_proven(facts.untold) if facts.untold else judge(facts)

    return judged


def told(facts: Facts) -> float:
    """How many wrong answers the counters can explain at most."""
    return sum(facts.decode.growth(metric, **labels) for metric, labels in TOLD)


def told_numbers(facts: Facts) -> tuple[Number, ...]:
    """Those counters."""
    return tuple(facts.decode.number(metric, **labels) for metric, labels in TOLD)


def plural(count: float, what: str) -> str:
    """So many of something."""
    return f"{count:g} {what}" if count == 1 else f"{count:g} {what}s"
