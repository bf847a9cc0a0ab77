"""What panels are made of: queries, thresholds, units, overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders import prometheus
from grafana_foundation_sdk.models import common, units
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import prometheus as prometheus_model

from moriio_observed.alerting.values import Values
from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.queries import Query

DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
EXCEEDED = 1e-9
"""An alert fires above 0, a colour begins at its value: so it begins at next to nothing."""

_UNITS = {value for name, value in vars(units).items() if isinstance(value, str) and name[0] != "_"}


@dataclass(frozen=True, slots=True)
class Context:
    """What panels are made with.

    Attributes:
        queries: The catalogue.
        values: The values of the alerts, whose thresholds panels share.
        asked: The names of the queries that were asked for so far.
    """

    queries: Mapping[str, Query]
    values: Values
    asked: set[str]

    def query(self, name: str) -> Query:
        """Return a query of the catalogue, and note that somebody asks it.

        Raises:
            DashboardsError: There is no such.
        """
        if name not in self.queries:
            raise DashboardsError(f"no query is called {name}: see queries.yaml")
        self.asked.add(name)
        return self.queries[name]

    def threshold(self, value: float | str) -> float:
        """Return a number, or the number of a threshold of the alerts.

        Raises:
            DashboardsError: No threshold has this name.
        """
        if not isinstance(value, str):
            return value
        try:
            return float(self.values["thresholds"][value]) or EXCEEDED
        except KeyError:
            raise DashboardsError(f"no threshold is called {value}: see values.yaml") from None


def target(query: Query, ref_id: str) -> prometheus.Dataquery:
    """Return a query as a panel or annotation asks it."""
    asked = (
        prometheus.Dataquery()
        .ref_id(ref_id)
        .datasource(DATASOURCE)
        .editor_mode(prometheus_model.QueryEditorMode.CODE)
        .expr(query.expr)
    )
    if query.legend:
        asked.legend_format(query.legend)
    return asked.instant() if query.once else asked.range()


def targets_of(
    names: Sequence[str],
    context: Context,
    form: prometheus_model.PromQueryFormat = prometheus_model.PromQueryFormat.TIME_SERIES,
) -> list[prometheus.Dataquery]:
    """Return queries as a panel asks them, in their order."""
    targets = []
    for number, name in enumerate(names):
        query = context.query(name)
        asked = target(query, chr(ord("A") + number)).format(form)
        if query.has_exemplars and form is not prometheus_model.PromQueryFormat.TABLE:
            asked.exemplar(exemplar=True)
        targets.append(asked)
    return targets


def unit_of(unit: str) -> str:
    """Return a unit of Grafana's.

    Raises:
        DashboardsError: Grafana has no such.
    """
    if unit not in _UNITS:
        raise DashboardsError(f"Grafana has no unit {unit!r}")
    return unit


def thresholds_of(spec: Mapping[str, float | str], context: Context) -> dashboards.ThresholdsConfig:
    """Return thresholds: colours and where they begin.

    Raises:
        DashboardsError: They do not rise from a base.
    """
    if "base" not in spec:
        raise DashboardsError(f"thresholds begin with the colour of their base, not {dict(spec)}")
    begins = {
        colour: context.threshold(value) for colour, value in spec.items() if colour != "base"
    }
    if list(begins.values()) != sorted(begins.values()):
        raise DashboardsError(f"thresholds rise, not {begins}")
    base = model.Threshold(value=None, color=str(spec["base"]))
    steps = [model.Threshold(value=value, color=colour) for colour, value in begins.items()]
    return dashboards.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps([base, *steps])


def mapping(texts: Mapping[str, Sequence[str]]) -> model.ValueMap:
    """Return the text and the colour that stand for each value."""
    return model.ValueMap(
        options={
            value: model.ValueMappingResult(text=text, color=colour, index=index)
            for index, (value, (text, colour)) in enumerate(texts.items())
        }
    )


def fixed(colour: str) -> dict[str, str]:
    """Return one colour."""
    return {"mode": "fixed", "fixedColor": colour}


def setting(name: str, value: Any) -> model.DynamicConfigValue:
    """Return one setting of an override."""
    return model.DynamicConfigValue(id_val=name, value=value)
