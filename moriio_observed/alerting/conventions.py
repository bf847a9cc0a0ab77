"""What every alert of ours has, so that whoever is woken knows what, where and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from moriio_observed.alerting.queries import Queries
from moriio_observed.alerting.rules import (
    DASHBOARD,
    DASHBOARDS,
    KEEP_FIRING_FOR,
    Group,
    Rule,
    alerts_of,
    rules_of,
)
from moriio_observed.alerting.values import (
    Values,
    label_names,
    placeholders,
    substitute,
    value_names,
)

CLOSED: Mapping[str, tuple[str, ...]] = {
    "severity": ("page", "ticket"),
    # What happens together, and so is told once.
    "incident": ("answers", "reads", "claims", "release", "setup", "telemetry"),
    # A symptom makes the budgets and causes of its incident quiet.
    "kind": ("symptom", "budget", "cause"),
}
"""The labels of an alert's own, and what they may say: routes and inhibitions go by them."""

_LEVELS = {
    "canary": "canary",
    "engine": "engine",
    "fleet": "fleet",
    "rank": "engine",
    "remote": "fleet",
}
"""What the names of recording rules begin with, and the labels that such a series has at least."""

_ALERTNAME = re.compile(r'alertname="(\w+)"')
_LABEL = re.compile(r"\$labels\.(\w+)")


def problems(sources: Iterable[Group], values: Values) -> Iterator[str]:
    """Yield what is wrong with some sources, a line each.

    Args:
        sources: Groups with placeholders.
        values: What stands for them.

    Raises:
        AlertsError: A placeholder has no value.
    """
    sources = list(sources)
    groups: list[Group] = [substitute(group, values) for group in sources]
    recorded = {rule["record"]: rule["expr"] for rule in rules_of(groups) if "record" in rule}
    target = label_names(values, "engine") | label_names(values, "fleet")
    for rule in rules_of(groups):
        queries = Queries(target, recorded)
        labels = queries.labels(rule["expr"])
        name = rule.get("alert") or rule["record"]
        complaints = [*queries.problems, *_complaints(rule, labels, values)]
        yield from (f"{name}: {complaint}" for complaint in complaints)
    if unused := sorted(_unused(sources, values)):
        yield f"values that no rule asks for: {', '.join(unused)}"


def _complaints(rule: Rule, labels: frozenset[str], values: Values) -> Iterator[str]:
    if "alert" in rule:
        yield from _of_alert(rule, labels)
    else:
        yield from _of_recording(rule, labels, values)


def _of_alert(rule: Rule, labels: frozenset[str]) -> Iterator[str]:
    own, annotations = rule.get("labels", {}), rule.get("annotations", {})
    for label, allowed in CLOSED.items():
        if own.get(label) not in allowed:
            yield f"label {label} is one of {', '.join(allowed)}, not {own.get(label)}"
    if missing := {"for", KEEP_FIRING_FOR} - set(rule):
        yield f"no {' and no '.join(sorted(missing))}"
    if missing := {"summary", "description"} - set(annotations):
        yield f"no {' and no '.join(sorted(missing))}"
    if annotations.get(DASHBOARD) not in DASHBOARDS:
        yield f"dashboard is one of {', '.join(DASHBOARDS)}, not {annotations.get(DASHBOARD)}"
    if "$value" not in annotations.get("description", ""):
        yield "the description tells no value"
    told = set(_LABEL.findall(" ".join(annotations.values())))
    if unknown := sorted(told - labels - set(own)):
        yield f"annotations name labels the query does not return: {', '.join(unknown)}"


def _of_recording(rule: Rule, labels: frozenset[str], values: Values) -> Iterator[str]:
    level, *rest = rule["record"].split(":")
    if len(rest) != len(("metric", "operations")) or level not in _LEVELS:
        yield f"not level:metric:operations, with a level of {', '.join(_LEVELS)}"
    elif missing := sorted(label_names(values, _LEVELS[level]) - labels):
        yield f"no label {', '.join(missing)} at the level {level}"


def _unused(sources: list[Group], values: Values) -> set[str]:
    asked = {name for source in _texts(sources) for name in placeholders(source)}
    links = {f"{section}.{name}" for section in ("links", "resource") for name in values[section]}
    return value_names(values) - asked - links


def _texts(source: Any) -> Iterator[str]:
    if isinstance(source, str):
        yield source
    elif isinstance(source, Mapping):
        for value in source.values():
            yield from _texts(value)
    elif isinstance(source, list):
        for item in source:
            yield from _texts(item)


def untested(groups: Iterable[Group], tests: Mapping[str, Any]) -> Iterator[str]:
    """Yield which alerts lack a case in which they fire, or one in which they must not.

    A case belongs to an alert when its name begins with the alert's and `fires` or `is quiet`. What
    fires is asked of `ALERTS`, so that nothing else may fire beside it unnoticed.

    Args:
        groups: Rule groups.
        tests: Files of promtool tests by name.
    """
    cases = [case for file in tests.values() for case in file["tests"]]
    for rule in alerts_of(groups):
        name = rule["alert"]
        fires = [_fired(case) for case in cases if _name(case).startswith(f"{name} fires")]
        quiet = [_fired(case) for case in cases if _name(case).startswith(f"{name} is quiet")]
        if not any(name in fired for fired in fires):
            yield f"{name}: no test in which it fires"
        if not quiet:
            yield f"{name}: no test in which it must not fire"
        if any(name in fired for fired in quiet):
            yield f"{name}: fires in a test in which it must not"


def _name(case: Mapping[str, Any]) -> str:
    return str(case.get("name", ""))


def _fired(case: Mapping[str, Any]) -> set[str]:
    return {
        fired
        for asked in case.get("promql_expr_test", ())
        if "ALERTS" in asked["expr"]
        for sample in asked.get("exp_samples", ())
        for fired in _ALERTNAME.findall(sample["labels"])
    }
