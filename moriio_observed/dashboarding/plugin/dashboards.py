"""Dashboards and their rows, to which all else comes together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from grafana_dashboards.components import dashboards as builder
from grafana_dashboards.components.annotations import Annotations
from grafana_dashboards.components.panels import Panels
from grafana_dashboards.components.rows import Rows, RowsItemBase
from grafana_dashboards.components.templates import Templates
from grafana_foundation_sdk.builders import dashboard as sdk
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from moriio_observed.dashboarding.folder import TAG
from moriio_observed.dashboarding.plugin import specs

_OF_INTERVALS = ("auto", "auto_min", "auto_count")
"""Keys of interval variables that the SDK writes on every variable."""


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
