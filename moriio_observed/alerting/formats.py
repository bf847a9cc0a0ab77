"""What rendered groups look like to whoever takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moriio_observed.alerting.rules import Group
from moriio_observed.alerting.values import Values


def plain(groups: list[Group], values: Values) -> Mapping[str, Any]:  # noqa: ARG001 - one signature
    """A rule file of Prometheus, vmalert or Thanos."""
    return {"groups": groups}


def prometheus_rule(groups: list[Group], values: Values) -> Mapping[str, Any]:
    """A PrometheusRule resource for the Prometheus operator."""
    resource = values["resource"]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": resource["name"], "labels": {"release": resource["release"]}},
        "spec": {"groups": groups},
    }


def mimir(groups: list[Group], values: Values) -> Mapping[str, Any]:
    """A rule file for `mimirtool rules load`."""
    return {"namespace": values["resource"]["namespace"], "groups": groups}


FORMATS: Mapping[str, Callable[[list[Group], Values], Mapping[str, Any]]] = {
    "plain": plain,
    "prometheusrule": prometheus_rule,
    "mimir": mimir,
}
