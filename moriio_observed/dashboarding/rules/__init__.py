"""The rules that every dashboard keeps, each a function that yields what breaks it.

They are those of Grafana's own linter that make sense for us, and ours: a panel says what it means,
and asks for what somebody exposes.
"""

from __future__ import annotations

from collections.abc import Iterator

from moriio_observed.dashboarding.folder import Dashboard
from moriio_observed.dashboarding.rules import of_dashboards, of_panels
from moriio_observed.dashboarding.rules.known import Known
from moriio_observed.dashboarding.rules.of_queries import of_query
from moriio_observed.dashboarding.rules.parts import expressions, panels

__all__ = ["Known", "problems"]


def problems(dashboard: Dashboard, known: Known) -> Iterator[str]:
    """Yield what is wrong with a dashboard, a line each."""
    for rule in of_dashboards.RULES:
        yield from rule(dashboard)
    for rule_with_known in of_dashboards.RULES_WITH_KNOWN:
        yield from rule_with_known(dashboard, known)
    for panel in panels(dashboard):
        name = f"panel {panel.get('title') or panel.get('id')!r}"
        complaints = [complaint for rule in of_panels.RULES for complaint in rule(panel)]
        yield from (f"{name}: {complaint}" for complaint in complaints)
    for name, expr in expressions(dashboard):
        yield from (f"{name}: {complaint}" for complaint in of_query(expr, known))
