"""Rule groups with values in place: links added, ready for an engine of any age."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from moriio_observed.alerting.values import Values, label_names, substitute
from moriio_observed.canary import metrics as canary

Rule = dict[str, Any]
Group = dict[str, Any]

KEEP_FIRING_FOR = "keep_firing_for"
DASHBOARD = "dashboard"
DASHBOARDS: tuple[str, ...] = ("salad-watch", "read-barrier", "reads-and-transport", "fleet")
"""What an alert's annotation `dashboard` may name. The uid is the name after `moriio-`."""

VARIABLES: Mapping[str, str] = {
    "job": "job",
    "instance": "instance",
    "model_name": "model",
    "engine": "engine",
}
"""The dashboards' variables by the label of an engine that they stand for."""
CANARY_VARIABLES: Mapping[str, str] = {"model_name": "model", "target": "target"}
"""The same of a canary, whose job is not that of the engines it asks."""


def render_groups(
    sources: Iterable[Group], values: Values, *, keep_firing_for: bool = True
) -> list[Group]:
    """Return rule groups as Prometheus takes them.

    Args:
        sources: Groups with placeholders.
        values: What stands for them.
        keep_firing_for: Whether the engine knows the key: Prometheus from 2.42, vmalert from 1.94.

    Raises:
        AlertsError: A placeholder has no value.
    """
    groups: list[Group] = [substitute(group, values) for group in sources]
    for rule in alerts_of(groups):
        _link(rule, values)
        if not keep_firing_for:
            rule.pop(KEEP_FIRING_FOR, None)
    return groups


def malformed(group: Any) -> str | None:
    """What a group lacks to be one, None where it has all that rendering takes for granted."""
    if not isinstance(group, Mapping) or not isinstance(group.get("rules"), list):
        return f"a group has a name and a list of rules, not {group!r:.60}"
    for rule in group["rules"]:
        if not isinstance(rule, Mapping) or not {"alert", "record"} & rule.keys():
            return f"a rule has an alert or a record, not {rule!r:.60}"
        name = rule.get("alert", rule.get("record"))
        if not isinstance(rule.get("expr"), str):
            return f"{name} has no expr, or none that is a text"
        if "alert" in rule and not isinstance(rule.get("annotations"), Mapping):
            return f"{name} has no annotations"
    return None


def rules_of(groups: Iterable[Group]) -> Iterator[Rule]:
    """Every rule of some groups."""
    for group in groups:
        yield from group["rules"]


def alerts_of(groups: Iterable[Group]) -> Iterator[Rule]:
    """Every alerting rule of some groups."""
    return (rule for rule in rules_of(groups) if "alert" in rule)


def _link(rule: Rule, values: Values) -> None:
    annotations = rule["annotations"]
    annotations["runbook_url"] = f"{_link_to(values, 'runbooks')}/{rule['alert']}.md"
    if (dashboard := annotations.pop(DASHBOARD, None)) is not None:
        annotations["dashboard_url"] = _dashboard_url(dashboard, rule["expr"], values)


def _dashboard_url(dashboard: str, expr: str, values: Values) -> str:
    """The dashboard with its variables set to where the alert fires."""
    if canary.asked_for_in(expr):
        level, variables = "canary", CANARY_VARIABLES
    else:
        # An expression that never tells engines apart fires for a fleet.
        of_engine = str(values["labels"]["engine"]) in expr or "engine:" in expr
        level, variables = "engine" if of_engine else "fleet", VARIABLES
    labels = label_names(values, level)
    query = "&".join(
        f"var-{variable}={{{{ $labels.{label} | urlquery }}}}"
        for label, variable in variables.items()
        if label in labels
    )
    return f"{_link_to(values, 'dashboards')}/moriio-{dashboard}?{query}"


def _link_to(values: Values, place: str) -> str:
    return str(values["links"][place]).rstrip("/")
