"""Whether dashboards keep the rules, and are what their sources say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from moriio_observed.alerting.rules import render_groups, rules_of
from moriio_observed.alerting.values import Values, label_names
from moriio_observed.dashboarding import rules
from moriio_observed.dashboarding.build import build
from moriio_observed.dashboarding.folder import Dashboard, Folder, to_text


def problems(folder: Folder, values: Values) -> Iterator[str]:
    """Yield what is wrong with the built dashboards of a folder, a line each.

    Args:
        folder: A user's own copy, or ours.
        values: The values of the alerts.

    Raises:
        AlertsError: A rule or value cannot be used.
        DashboardsError: A dashboard cannot be read.
    """
    groups = render_groups(folder.alerts.sources(), values)
    known = rules.Known(
        target=label_names(values, "engine") | label_names(values, "fleet"),
        recorded={rule["record"]: rule["expr"] for rule in rules_of(groups) if "record" in rule},
        runbooks=folder.runbooks(),
    )
    uids: dict[str, str] = {}
    for name, dashboard in folder.built().items():
        uid = str(dashboard.get("uid"))
        if (other := uids.setdefault(uid, name)) != name:
            yield f"{name}: has the uid of {other}"
        yield from (f"{name}: {problem}" for problem in rules.problems(dashboard, known))


def drift(folder: Folder, values: Values) -> Iterator[str]:
    """Yield which built dashboards are not what their sources say.

    Raises:
        DashboardsError: The sources cannot be built, or the builder is missing.
    """
    yield from differences(folder.built(), build(folder, values))


def differences(
    committed: Mapping[str, Dashboard], built: Mapping[str, Dashboard]
) -> Iterator[str]:
    """Yield how dashboards on disk differ from those just built."""
    for name in sorted(set(committed) | set(built)):
        if name not in built:
            yield f"{name}: no source makes it"
        elif name not in committed:
            yield f"{name}: not built yet: moriio-observed dashboards build"
        elif to_text(committed[name]) != to_text(built[name]):
            yield f"{name}: differs from its source: moriio-observed dashboards build"
