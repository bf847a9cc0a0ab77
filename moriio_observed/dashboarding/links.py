"""Where a panel leads: other dashboards with what is chosen here, and runbooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from moriio_observed.alerting.rules import DASHBOARDS, VARIABLES
from moriio_observed.dashboarding.errors import DashboardsError

RUNBOOKS = "runbooks"
"""The variable that says where the runbooks are."""

_CHOICES = ("datasource", *VARIABLES.values(), "rank")


def uid_of(dashboard: str) -> str:
    """Return the uid of a dashboard by the name that alerts have for it.

    Raises:
        DashboardsError: There is no such.
    """
    if dashboard not in DASHBOARDS:
        raise DashboardsError(f"{dashboard} is none of our dashboards: {', '.join(DASHBOARDS)}")
    return f"moriio-{dashboard}"


def to_dashboard(dashboard: str) -> str:
    """Return the address of a dashboard that keeps the choices and the time."""
    choices = "&".join(f"${{{variable}:queryparam}}" for variable in _CHOICES)
    return f"/d/{uid_of(dashboard)}?{choices}&${{__url_time_range}}"


def to_dashboard_of_row(dashboard: str, columns: Mapping[str, str]) -> str:
    """Return the address of a dashboard about what a table's row is about.

    Args:
        dashboard: Its name.
        columns: The titles of the columns by the label they show.
    """
    chosen = "&".join(
        f'var-{variable}=${{__data.fields["{columns[label]}"]:percentencode}}'
        for label, variable in VARIABLES.items()
        if label in columns
    )
    return f"/d/{uid_of(dashboard)}?${{datasource:queryparam}}&{chosen}&${{__url_time_range}}"


def to_runbook(alert: str) -> str:
    """Return the address of an alert's runbook."""
    return f"${{{RUNBOOKS}}}/{alert}.md"


def titles(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return what to call dashboards in a link, with their names."""
    return [(name.replace("-", " ").capitalize(), name) for name in names]
