"""The builder's registry of components, made strict."""

from __future__ import annotations

from typing import Any

from grafana_dashboards.components import dashboards as builder
from grafana_dashboards.components.base import ComponentRegistry

from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.plugin.dashboards import Dashboard
from moriio_observed.dashboarding.plugin.pieces import Context


class Registry(ComponentRegistry):
    """The builder's registry, which refuses what the builder skips in silence.

    Args:
        context: What panels are made with.
    """

    def __init__(self, context: Context) -> None:
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
