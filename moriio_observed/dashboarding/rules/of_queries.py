"""Rules about one query."""

from __future__ import annotations

from collections.abc import Iterator

from moriio_observed.canary import metrics as canary
from moriio_observed.dashboarding.promql import ALERTS, PanelQueries, Selector, ranges, selectors
from moriio_observed.dashboarding.queries import RANGE, RATE_INTERVAL, interpolate
from moriio_observed.dashboarding.rules.known import PER_CANARY, PER_TARGET, Known

_LOOK_BACK = {
    "rate": {RATE_INTERVAL},
    "irate": {RATE_INTERVAL},
    "increase": {RATE_INTERVAL, RANGE},
}


def of_query(expr: str, known: Known) -> Iterator[str]:
    """Yield what is wrong with a query of a panel or annotation."""
    if not expr.strip():
        return
    asked = PanelQueries(known.target, known.recorded)
    asked.labels(interpolate(expr))
    yield from asked.problems
    if any(problem.startswith("does not parse") for problem in asked.problems):
        return
    yield from _look_back(expr)
    # Not interpolated: whether the variables are there is the question.
    kept = {name: f"${name}" for name in (*PER_TARGET, *PER_CANARY)}
    for selector in selectors(interpolate(expr, choices=kept)):
        for label in _unmatched(selector):
            yield f"{selector.name} is not matched with the variable {label}"
        if selector.is_bare_counter:
            yield f"{selector.name} is a counter: ask for its rate or increase"


def _unmatched(selector: Selector) -> list[str]:
    """The variables that a selection lacks. Alerts are an engine's or a canary's."""
    of_engine, of_canary = (
        [label for label in labels if f"${label}" not in selector.matchers.get(label, "")]
        for labels in (PER_TARGET, PER_CANARY)
    )
    if selector.name == ALERTS:
        return of_engine if of_canary else []
    return of_canary if canary.asked_for_in(selector.name) else of_engine


def _look_back(expr: str) -> Iterator[str]:
    for function, window in ranges(expr):
        allowed = _LOOK_BACK.get(function, {window})
        if window not in allowed:
            yield f"{function} looks back over {' or '.join(sorted(allowed))}, not {window}"
