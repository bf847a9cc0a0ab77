"""Our plugin of grafana-dashboard-builder: what the YAML's components are made into.

The builder finds a component by its class's name. Ours that have the name of one of the builder's
(`Dashboard`, `Row`, `Stat`, `Table`, `Annotation`) stand in its place. Components make parts of the
foundation SDK; only the dashboard makes JSON.
"""

from moriio_observed.dashboarding.plugin import annotations, components, variables
from moriio_observed.dashboarding.plugin.pieces import Context
from moriio_observed.dashboarding.plugin.registry import Registry

__all__ = ["Context", "Registry", "annotations", "components", "variables"]
