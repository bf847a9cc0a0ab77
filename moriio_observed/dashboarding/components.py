"""Our plugin of grafana-dashboard-builder: what the YAML's components are made into.

The builder finds a component by its class's name. Ours that have the name of one of the builder's
(`Dashboard`, `Row`, `Stat`, `Table`, `Heatmap`) stand in its place. A component makes parts of the
foundation SDK; only the dashboard makes JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from grafana_dashboards.components import dashboards as builder
from grafana_dashboards.components.annotations import Annotations, AnnotationsItemBase
from grafana_dashboards.components.base import ComponentRegistry
from grafana_dashboards.components.panels import Panels, PanelsItemBase
from grafana_dashboards.components.rows import Rows, RowsItemBase
from grafana_dashboards.components.templates import Templates, TemplatesItemBase
from grafana_foundation_sdk.builders import dashboard as sdk
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from moriio_observed.dashboarding import panels, specs
from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.folder import TAG

_OF_INTERVALS = ("auto", "auto_min", "auto_count")
"""Keys of interval variables that the SDK writes on every variable."""


class Registry(ComponentRegistry):
    """The builder's registry, which refuses what the builder skips in silence.

    Args:
        context: What panels are made with.
    """

    def __init__(self, context: panels.Context) -> None:
        super().__init__()
        self.context = context

    def add(self, component: Any) -> None:
        """Add a component of the YAML.

        Raises:
            DashboardsError: It has no name, or nobody makes its type.
        """
        kinds = set(component) - {"name"}
        if "name" not in component or len(kinds) != 1:
            raise DashboardsError(f"a component has a name and a type, not {sorted(component)}")
        (kind,) = kinds
        if kind not in self._types:
            raise DashboardsError(f"{component['name']}: there is no component of type {kind}")
        super().add(component)

    def _get_component(self, item: type) -> Any:
        # Projects ask for the builder's own class.
        return super()._get_component(Dashboard if item is builder.Dashboard else item)


@dataclass(frozen=True, kw_only=True)
class DashboardSpec(specs.Spec):
    """What a dashboard in the YAML says.

    Attributes:
        title: Its name.
        uid: What addresses are made of.
        description: Which question it answers.
        templates: Its variables, or the name of a set of them.
        annotations: Likewise.
        rows: Its rows of panels.
        time: How far back it looks at first.
    """

    title: str
    uid: str
    description: str
    templates: Sequence[Any]
    annotations: Sequence[Any]
    rows: Sequence[Any]
    time: str = "now-1h"


class Dashboard(builder.Dashboard):
    """A dashboard, as JSON."""

    def gen_json_from_data(self, data: Any, _context: Any) -> dict[str, Any]:
        """Return the dashboard as Grafana takes it."""
        spec = DashboardSpec.parse(data, f"dashboard {self.name}")
        made = (
            sdk.Dashboard(spec.title)
            .uid(spec.uid)
            .description(" ".join(spec.description.split()))
            .tags([TAG])
            .readonly()
            .time(spec.time, "now")
            .refresh("30s")
            .tooltip(model.DashboardCursorSync.CROSSHAIR)
            .link(
                sdk.DashboardLink("Other views")
                .type(model.DashboardLinkType.DASHBOARDS)
                .tags([TAG])
                .as_dropdown(as_dropdown=True)
                .include_vars(include_vars=True)
                .keep_time(keep_time=True)
            )
            .variables(self._list(Templates, spec.templates))
            .annotations(self._list(Annotations, spec.annotations))
        )
        for row in self._list(Rows, spec.rows):
            made.with_row(sdk.Row(row.title))
            for panel in row.panels:
                made.with_panel(panel)
        return _tidy(json.loads(json.dumps(made.build(), cls=JSONEncoder)))

    def _list(self, kind: type, items: Sequence[Any]) -> list[Any]:
        made: list[Any] = self.registry.create_component(
            kind, {kind.__name__.lower(): items}
        ).gen_json()
        return made


@dataclass(frozen=True, kw_only=True)
class RowSpec(specs.Spec):
    """What a row says: the question its panels answer, and the panels."""

    title: str
    panels: Sequence[Any] = field(default_factory=tuple)


class Row(RowsItemBase):
    """A row of panels."""

    def gen_json_from_data(self, data: Any, _context: Any) -> RowSpec:
        """Return the row with its panels made."""
        spec = RowSpec.parse(data, "row")
        made = self.registry.create_component(Panels, {"panels": spec.panels}).gen_json()
        return RowSpec(title=spec.title, panels=made)


class _Made:
    """A panel, made of its spec."""

    spec: ClassVar[type[specs.Panel]]
    make: ClassVar[Any]
    registry: Registry

    def gen_json_from_data(self, data: Any, _context: Any) -> panels.AnyPanel:
        """Return the panel."""
        title = data.get("title", "without a title") if isinstance(data, dict) else data
        spec = self.spec.parse(data, f"panel {title!r}")
        made: panels.AnyPanel = self.make(spec, self.registry.context)
        return made


class TimeSeries(_Made, PanelsItemBase):
    """Lines or bars over time."""

    spec = specs.TimeSeries
    make = staticmethod(panels.time_series)


class Stat(_Made, PanelsItemBase):
    """One number."""

    spec = specs.Stat
    make = staticmethod(panels.stat_panel)


class Heatmap(_Made, PanelsItemBase):
    """A histogram over time."""

    spec = specs.Heatmap
    make = staticmethod(panels.heatmap_panel)


class StateTimeline(_Made, PanelsItemBase):
    """States over time."""

    spec = specs.StateTimeline
    make = staticmethod(panels.state_timeline)


class Table(_Made, PanelsItemBase):
    """A table."""

    spec = specs.Table
    make = staticmethod(panels.table_panel)


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
            .datasource(panels.DATASOURCE)
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
        return sdk.ConstantVariable(spec.name).value(str(places[spec.name]))


@dataclass(frozen=True, kw_only=True)
class AnnotationSpec(specs.Spec):
    """What happened, drawn over every panel.

    Attributes:
        name: What it is called.
        query: Its query in the catalogue, whose legend is the annotation's title.
        colour: Its colour.
        tells: The labels that it shows.
    """

    name: str
    query: str
    colour: str
    tells: Sequence[str]


class Annotation(AnnotationsItemBase):
    """What happened, drawn over every panel."""

    def gen_json_from_data(self, data: Any, _context: Any) -> sdk.AnnotationQuery:
        """Return the annotation."""
        spec = AnnotationSpec.parse(data, "annotation")
        query = self.registry.context.query(spec.query)
        return (
            sdk.AnnotationQuery()
            .name(spec.name)
            .datasource(panels.DATASOURCE)
            .enable(enable=True)
            .icon_color(spec.colour)
            .target(panels.target(query, "Anno").interval("15s"))
            .title_format(query.legend)
            .text_format(", ".join(f"{label} {{{{{label}}}}}" for label in spec.tells))
        )


def _tidy(dashboard: dict[str, Any]) -> dict[str, Any]:
    """The SDK's output with what it leaves out, and without what it writes too much."""
    for number, panel in enumerate(dashboard["panels"], start=1):
        panel["id"] = number
        panel.get("options", {}).pop("footer", None)
        for link in panel.get("links", ()):
            link.pop("placement")
    for part in (*dashboard["links"], *dashboard["annotations"]["list"]):
        part.pop("placement")
    for variable in dashboard["templating"]["list"]:
        for key in _OF_INTERVALS:
            variable.pop(key, None)
    return dashboard
