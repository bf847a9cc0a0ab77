"""The components of panels, by the names that the YAML has for them."""

from __future__ import annotations

from typing import Any, ClassVar

from grafana_dashboards.components.panels import PanelsItemBase

from moriio_observed.dashboarding.plugin import panels, specs, tables
from moriio_observed.dashboarding.plugin.common import AnyPanel
from moriio_observed.dashboarding.plugin.registry import Registry


class _Made:
    """A panel, made of its spec."""

    spec: ClassVar[type[specs.Panel]]
    make: ClassVar[Any]
    registry: Registry

    def gen_json_from_data(self, data: Any, _context: Any) -> AnyPanel:
        """Return the panel."""
        title = data.get("title", "without a title") if isinstance(data, dict) else data
        spec = self.spec.parse(data, f"panel {title!r}")
        made: AnyPanel = self.make(spec, self.registry.context)
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
    make = staticmethod(tables.table_panel)
