"""The components of variables: what the user can choose above the panels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from grafana_dashboards.components.templates import TemplatesItemBase
from grafana_foundation_sdk.builders import dashboard as sdk
from grafana_foundation_sdk.models import dashboard as model

from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.plugin import specs
from moriio_observed.dashboarding.plugin.pieces import DATASOURCE


@dataclass(frozen=True, kw_only=True)
class PrometheusVariableSpec(specs.Spec):
    """The choice of the Prometheus to ask."""

    name: str
    label: str


class PrometheusVariable(TemplatesItemBase):
    """The choice of the Prometheus to ask."""

    def gen_json_from_data(self, data: Any, _context: Any) -> sdk.DatasourceVariable:
        """Return the variable."""
        spec = PrometheusVariableSpec.parse(data, "prometheus-variable")
        return sdk.DatasourceVariable(spec.name).label(spec.label).type("prometheus")


@dataclass(frozen=True, kw_only=True)
class LabelVariableSpec(specs.Spec):
    """The choice among the values of a label.

    Attributes:
        name: What queries call it.
        label: What the user sees.
        of: The label.
        metric: Whose label it is.
        within: Labels whose choice narrows this one, by their variable.
        may_lack: Whether series without the label are among all.
    """

    name: str
    label: str
    of: str
    metric: str
    within: dict[str, str] = field(default_factory=dict)
    may_lack: bool = False


class LabelVariable(TemplatesItemBase):
    """The choice among the values of a label: several, or all."""

    def gen_json_from_data(self, data: Any, _context: Any) -> sdk.QueryVariable:
        """Return the variable."""
        spec = LabelVariableSpec.parse(data, "label-variable")
        within = ", ".join(f'{label}=~"${variable}"' for label, variable in spec.within.items())
        series = f"{spec.metric}{{{within}}}" if within else spec.metric
        query = f"label_values({series}, {spec.of})"
        return (
            sdk.QueryVariable(spec.name)
            .label(spec.label)
            .datasource(DATASOURCE)
            .query({"query": query, "refId": "variable"})
            .multi(multi=True)
            .include_all(include_all=True)
            .all_value(".*" if spec.may_lack else ".+")
            .current(model.VariableOption(text="All", value="$__all", selected=True))
            .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(model.VariableSort.NATURAL_ASC)
        )


@dataclass(frozen=True, kw_only=True)
class PlaceVariableSpec(specs.Spec):
    """A place outside of Grafana that links go to: one of `links` in values.yaml."""

    name: str


class PlaceVariable(TemplatesItemBase):
    """A place outside of Grafana that links go to."""

    def gen_json_from_data(self, data: Any, _context: Any) -> sdk.ConstantVariable:
        """Return the variable."""
        spec = PlaceVariableSpec.parse(data, "place-variable")
        places = self.registry.context.values["links"]
        if spec.name not in places:
            raise DashboardsError(f"values.yaml has no links.{spec.name}")
        return sdk.ConstantVariable(spec.name).value(str(places[spec.name]).rstrip("/"))
