"""What every panel has, whatever it shows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders import (
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import dashboard as model

from moriio_observed.dashboarding import links
from moriio_observed.dashboarding.plugin import specs
from moriio_observed.dashboarding.plugin.pieces import (
    DATASOURCE,
    Context,
    thresholds_of,
    unit_of,
)

AnyPanel = timeseries.Panel | stat.Panel | heatmap.Panel | statetimeline.Panel | table.Panel

P = TypeVar("P", bound=AnyPanel)


def finished(
    panel: P, spec: specs.Panel, targets: Iterable[prometheus.Dataquery], context: Context
) -> P:
    """Return a panel with what all of them have."""
    panel.title(spec.title).description(" ".join(spec.description.split()))
    panel.unit(unit_of(spec.unit)).thresholds(thresholds_of(spec.thresholds, context))
    panel.color_scheme(_colour_mode(panel))
    panel.datasource(DATASOURCE).span(spec.width).height(spec.height)
    for asked in targets:
        panel.with_target(asked)
    for limit, value in (
        (panel.min, spec.min),
        (panel.max, spec.max),
        (panel.decimals, spec.decimals),
    ):
        if value is not None:
            limit(value)
    if spec.no_value is not None:
        panel.no_value(spec.no_value)
    panel.links(
        [
            *(_link(title, links.to_dashboard(name)) for title, name in links.titles(spec.links)),
            *(
                _link(f"Runbook {alert}", links.to_runbook(alert)).target_blank(target_blank=True)
                for alert in spec.runbooks
            ),
        ]
    )
    return panel


def _colour_mode(panel: AnyPanel) -> dashboards.FieldColor:
    by_series = isinstance(panel, timeseries.Panel)
    return dashboards.FieldColor().mode(
        model.FieldColorModeId.PALETTE_CLASSIC if by_series else model.FieldColorModeId.THRESHOLDS
    )


def _link(title: str, url: str) -> dashboards.DashboardLink:
    return dashboards.DashboardLink(title).type(model.DashboardLinkType.LINK).url(url)
