"""Rules about a dashboard as a whole."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from moriio_observed.alerting.rules import DASHBOARDS
from moriio_observed.dashboarding.folder import Dashboard
from moriio_observed.dashboarding.links import RUNBOOKS, uid_of
from moriio_observed.dashboarding.promql import ALERTS, PanelQueries
from moriio_observed.dashboarding.queries import interpolate
from moriio_observed.dashboarding.rules.known import PER_TARGET, Known
from moriio_observed.dashboarding.rules.parts import (
    DATASOURCE,
    expressions,
    shown_events,
    variables,
)

COLUMNS = 24

_ON_TIME_CHANGE = 2
_OF_INTERVALS = {"auto", "auto_min", "auto_count"}
_LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")
# Those of Grafana's own begin with two underscores.
_VARIABLE = re.compile(r"\$(?!__)([a-zA-Z_]\w*)")
_DASHBOARD = re.compile(r"/d/([\w-]+)")
_RUNBOOK = re.compile(rf"\$\{{{RUNBOOKS}\}}/(\w+)\.md")


def _identity(dashboard: Dashboard) -> Iterator[str]:
    for key in ("title", "uid", "description"):
        if not dashboard.get(key):
            yield f"no {key}"
    if dashboard.get("editable", True):
        yield "editable: what is changed in the browser is lost with the next push"


def _datasource_variable(dashboard: Dashboard) -> Iterator[str]:
    variable = variables(dashboard).get("datasource", {})
    if (variable.get("type"), variable.get("query")) != ("datasource", "prometheus"):
        yield "no variable datasource that chooses a Prometheus"


def _target_variables(dashboard: Dashboard) -> Iterator[str]:
    for name in PER_TARGET:
        variable = variables(dashboard).get(name, {})
        if variable.get("type") != "query":
            yield f"no variable {name} that asks for its values"
        elif not (variable.get("multi") and variable.get("includeAll")):
            yield f"variable {name} cannot be several or all"
        elif variable.get("allValue") != ".+":
            yield f"variable {name}: all is .+, not {variable.get('allValue')}"


def _every_variable(dashboard: Dashboard) -> Iterator[str]:
    for name, variable in variables(dashboard).items():
        if variable["type"] != "interval" and (keys := sorted(_OF_INTERVALS & set(variable))):
            yield f"variable {name} has keys of intervals: {', '.join(keys)}"
        if variable["type"] != "query":
            continue
        if variable.get("refresh") != _ON_TIME_CHANGE:
            yield f"variable {name} is not asked again when the time changes"
        if variable.get("datasource", {}).get("uid") != DATASOURCE:
            yield f"variable {name} does not ask the chosen datasource"


def _variable_queries(dashboard: Dashboard, known: Known) -> Iterator[str]:
    for name, variable in variables(dashboard).items():
        if variable["type"] != "query":
            continue
        query = variable.get("query")
        text = query.get("query", "") if isinstance(query, Mapping) else str(query)
        found = _LABEL_VALUES.fullmatch(text)
        if found is None:
            yield f"variable {name} asks no label_values(series, label): {text}"
            continue
        asked = PanelQueries(known.target, known.recorded)
        asked.labels(f"sum by ({found[2]}) ({interpolate(found[1])})")
        yield from (f"variable {name}: {problem}" for problem in asked.problems)


def _unused_variables(dashboard: Dashboard) -> Iterator[str]:
    asked = " ".join(expr for _, expr in expressions(dashboard))
    for name, variable in variables(dashboard).items():
        if variable["type"] == "query" and f"${name}" not in asked:
            yield f"variable {name} is in no query: choosing it changes nothing"


def _missing_variables(dashboard: Dashboard) -> Iterator[str]:
    asked = {name for _, expr in expressions(dashboard) for name in _VARIABLE.findall(expr)}
    for name in sorted(asked - variables(dashboard).keys()):
        yield f"no variable {name}, though a query asks for it"


def _alert_annotation(dashboard: Dashboard) -> Iterator[str]:
    shown = shown_events(dashboard)
    if not any(ALERTS in each.get("target", {}).get("expr", "") for each in shown):
        yield "no annotation shows alerts"
    for each in shown:
        if each.get("datasource", {}).get("uid") != DATASOURCE:
            yield f"annotation {each.get('name')!r} does not ask the chosen datasource"


def _ids(dashboard: Dashboard) -> Iterator[str]:
    numbers = [panel.get("id") for panel in dashboard["panels"]]
    if None in numbers or len(set(numbers)) != len(numbers):
        yield "panels without an id, or with the same one"


def _grid(dashboard: Dashboard) -> Iterator[str]:
    taken: dict[tuple[int, int], Any] = {}
    for panel in dashboard["panels"]:
        at = panel.get("gridPos", {})
        if not {"x", "y", "w", "h"} <= set(at) or at["x"] + at["w"] > COLUMNS:
            yield f"panel {panel.get('title')!r} is not within the {COLUMNS} columns"
            continue
        cells = itertools.product(
            range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
        )
        for cell in cells:
            if (other := taken.setdefault(cell, panel.get("title"))) != panel.get("title"):
                yield f"panel {panel.get('title')!r} lies over {other!r}"
                break


def _unknown_links(dashboard: Dashboard, known: Known) -> Iterator[str]:
    ours = {uid_of(name) for name in DASHBOARDS}
    addresses = list(_addresses(dashboard))
    for uid in sorted({uid for each in addresses for uid in _DASHBOARD.findall(each)} - ours):
        yield f"a link leads to {uid}, which is none of our dashboards"
    asked = {alert for each in addresses for alert in _RUNBOOK.findall(each)}
    for alert in sorted(asked - known.runbooks):
        yield f"a link leads to the runbook {alert}, which there is not"


def _addresses(part: Any) -> Iterator[str]:
    if isinstance(part, Mapping):
        for key, value in part.items():
            if key == "url" and isinstance(value, str):
                yield value
            yield from _addresses(value)
    elif isinstance(part, list):
        for item in part:
            yield from _addresses(item)


RULES: tuple[Callable[[Dashboard], Iterator[str]], ...] = (
    _identity,
    _datasource_variable,
    _target_variables,
    _every_variable,
    _unused_variables,
    _missing_variables,
    _alert_annotation,
    _ids,
    _grid,
)
RULES_WITH_KNOWN: tuple[Callable[[Dashboard, Known], Iterator[str]], ...] = (
    _variable_queries,
    _unknown_links,
)
