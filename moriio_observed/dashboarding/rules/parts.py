"""The parts of a dashboard that rules are about."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from moriio_observed.dashboarding.folder import Dashboard

DATASOURCE = "${datasource}"
"""The uid of the Prometheus that the user has chosen."""


def panels(dashboard: Dashboard) -> list[dict[str, Any]]:
    """Return every panel that shows something, those of folded rows too."""
    flat = itertools.chain.from_iterable(
        (panel, *panel.get("panels", ())) for panel in dashboard["panels"]
    )
    return [panel for panel in flat if panel.get("type") != "row"]


def expressions(dashboard: Dashboard) -> Iterator[tuple[str, str]]:
    """Yield every query of a dashboard's panels and annotations, with who asks it."""
    for panel in panels(dashboard):
        for target in panel.get("targets", ()):
            yield (
                f"panel {panel.get('title')!r}, query {target.get('refId')}",
                target.get("expr", ""),
            )
    for annotation in shown_events(dashboard):
        yield f"annotation {annotation.get('name')!r}", annotation.get("target", {}).get("expr", "")


def shown_events(dashboard: Dashboard) -> list[dict[str, Any]]:
    """Return the annotations but Grafana's own, which every dashboard gets by itself."""
    listed = dashboard.get("annotations", {}).get("list", [])
    return [annotation for annotation in listed if not annotation.get("builtIn")]


def variables(dashboard: Dashboard) -> Mapping[str, dict[str, Any]]:
    """Return the variables by their name."""
    return {
        variable["name"]: variable for variable in dashboard.get("templating", {}).get("list", [])
    }
