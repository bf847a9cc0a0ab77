"""From the YAML under `sources/` to dashboards, by grafana-dashboard-builder and our plugin.

The builder's own command prints one line about a plugin that does not load and goes on, and skips
what it does not know. So its library is used, and anything that is not right ends the build.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from moriio_observed.alerting.values import Values
from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.folder import Dashboard, Folder

INSTALL = "pip install --no-deps grafana-dashboard-builder==0.10.0a3 grafana-foundation-sdk==0.0.21"


def build(folder: Folder, values: Values) -> Mapping[str, Dashboard]:
    """Return the dashboards that a folder's sources say, by the name of their file.

    Args:
        folder: Where the sources and the queries are.
        values: The thresholds that panels share with the alerts, and where links go.

    Raises:
        DashboardsError: A source cannot be used, nobody asks a query, or the builder is missing.
    """
    try:
        from grafana_dashboards.components.projects import Project
        from grafana_dashboards.errors import DashboardBuilderException
        from grafana_dashboards.exporter import DashboardExporter, ProjectProcessor

        from moriio_observed.dashboarding import plugin
    except ModuleNotFoundError as error:
        raise DashboardsError(
            f"{error.name} is needed to build dashboards: {INSTALL} (check does without it by"
            " --no-drift)"
        ) from None

    class Collected(DashboardExporter):
        """Keeps the dashboards instead of writing them."""

        def process_dashboard(self, _project: str, dashboard_name: str, data: Dashboard) -> None:
            """Keep one dashboard."""
            built[f"{dashboard_name}.json"] = data

    built: dict[str, Dashboard] = {}
    queries = folder.queries(values)
    context = plugin.Context(queries, values, set())
    registry = plugin.Registry(context)
    try:
        for path in folder.sources():
            for component in _components(path):
                registry.add(component)
        ProjectProcessor([Collected()]).process_projects(registry[Project])
    except DashboardBuilderException as error:
        raise DashboardsError(str(error)) from error
    if not built:
        raise DashboardsError(f"{folder.path / 'sources'} has no project that names dashboards")
    if unasked := sorted(set(queries) - context.asked):
        raise DashboardsError(f"queries that no panel asks: {', '.join(unasked)}")
    return built


def _components(path: Path) -> Iterator[Any]:
    from grafana_dashboards.gdbyaml import GDBLoader

    try:
        with path.open(encoding="utf-8") as file:
            documents = list(yaml.load_all(file, Loader=GDBLoader))
    except (OSError, yaml.YAMLError) as error:
        raise DashboardsError(f"{path} cannot be read: {error}") from None
    for document in documents:
        if not isinstance(document, list):
            raise DashboardsError(f"{path} is a list of components")
        for component in document:
            if text := next(_braced(component), None):
                # The builder takes what stands in braces for a name of its own.
                raise DashboardsError(f"{path}: braces belong into queries.yaml: {text!r}")
            yield component


def _braced(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        if "{" in part or "}" in part:
            yield part
    elif isinstance(part, Mapping):
        for value in part.values():
            yield from _braced(value)
    elif isinstance(part, list):
        for item in part:
            yield from _braced(item)
