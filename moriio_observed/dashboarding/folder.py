"""A folder of dashboards on disk: `sources/`, from which `json/` is built."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moriio_observed.alerting.folder import Folder as AlertsFolder
from moriio_observed.alerting.values import Values
from moriio_observed.alerting.yaml_text import NotYamlError, from_yaml
from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.queries import Query, parse_queries
from moriio_observed.dashboarding.shape import malformed

Dashboard = dict[str, Any]
"""A dashboard as Grafana takes it."""

TAG = "moriio"
"""What tells our dashboards from others."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A user's own copy of our `dashboards/`, or ours.

    Attributes:
        path: Where it is. A folder that holds nothing but dashboards will do.
        alerts: The folder of the rules and of the catalogue of queries.
    """

    path: Path
    alerts: AlertsFolder

    @property
    def built_path(self) -> Path:
        """Where the built dashboards are."""
        nested = self.path / "json"
        return nested if nested.is_dir() or self.sources() else self.path

    def sources(self) -> list[Path]:
        """Return the YAML that the dashboards are built from; none in a folder of built ones."""
        return sorted((self.path / "sources").glob("*.yaml"))

    def built(self) -> Mapping[str, Dashboard]:
        """Return every built dashboard by its file's name.

        Raises:
            DashboardsError: A file cannot be read, or there are none.
        """
        found = {path.name: _read_json(path) for path in sorted(self.built_path.glob("*.json"))}
        if not found:
            raise DashboardsError(
                f"{self.built_path} has no dashboards: name the folder with --dir"
            )
        return found

    def queries(self, values: Values) -> Mapping[str, Query]:
        """Return the catalogue of queries.

        Raises:
            DashboardsError: It cannot be read.
        """
        return parse_queries(_read_yaml(self.alerts.path / "queries.yaml"), values)

    def runbooks(self) -> frozenset[str]:
        """Return the alerts that have a runbook."""
        return frozenset(path.stem for path in (self.alerts.path / "runbooks").glob("*.md"))


def to_text(dashboard: Dashboard) -> str:
    """Return a dashboard as its file holds it, the same for the same dashboard."""
    return json.dumps(dashboard, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _read_json(path: Path) -> Dashboard:
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DashboardsError(f"{path} cannot be read: {error}") from None
    if not isinstance(loaded, dict) or "panels" not in loaded:
        raise DashboardsError(f"{path} is no dashboard: it has no list of panels")
    if (problem := malformed(loaded)) is not None:
        raise DashboardsError(f"{path} is no dashboard: {problem}")
    variables = loaded.get("templating", {}).get("list", [])
    if not all({"name", "type"} <= one.keys() for one in variables):
        raise DashboardsError(f"{path} is no dashboard: a variable has a name and a type")
    return loaded


def _read_yaml(path: Path) -> Any:
    try:
        return from_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DashboardsError(f"{path} cannot be read: {error}") from None
    except NotYamlError as error:
        raise DashboardsError(f"{path} is no YAML: {error}") from None
