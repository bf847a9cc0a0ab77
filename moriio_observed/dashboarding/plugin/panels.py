"""From what the YAML says to Grafana's panels, through its foundation SDK; tables are apart."""

from __future__ import annotations

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import heatmap, stat, statetimeline, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models import prometheus as prometheus_model

from moriio_observed.dashboarding.plugin import specs
from moriio_observed.dashboarding.plugin.common import finished
from moriio_observed.dashboarding.plugin.pieces import (
    EXCEEDED,
    Context,
    fixed,
    mapping,
    setting,
    targets_of,
    unit_of,
)

_ROOM = 1.25
"""How far a scale goes beyond the highest threshold that is drawn."""


def time_series(spec: specs.TimeSeries, context: Context) -> timeseries.Panel:
    """Return a panel of lines or bars over time."""
    panel = (
        timeseries.Panel()
        .draw_style(common.GraphDrawStyle.BARS if spec.bars else common.GraphDrawStyle.LINE)
        .fill_opacity(60 if spec.bars else 10)
        .line_width(1)
        .show_points(common.VisibilityMode.NEVER)
        .tooltip(
            common_builders.VizTooltipOptions()
            .mode(common.TooltipDisplayMode.MULTI)
            .sort(common.SortOrder.DESCENDING)
        )
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(show_legend=True)
            .calcs([])
        )
    )
    if spec.stacked:
        panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    if spec.log:
        log = common_builders.ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(10)
        panel.scale_distribution(log)
    if spec.draw_thresholds:
        dashed = common.GraphThresholdsStyleMode.DASHED
        panel.thresholds_style(common_builders.GraphThresholdsStyleConfig().mode(dashed))
        # So that the line is seen while all is well: Grafana's scale of nothing ends at 10000 %.
        panel.axis_soft_max(_ROOM * _highest(spec, context))
    _name_overrides(panel, spec)
    return finished(panel, spec, targets_of(spec.queries, context), context)


def stat_panel(spec: specs.Stat, context: Context) -> stat.Panel:
    """Return a panel of one number; what is asked over time has its past behind it."""
    once = all(context.query(name).once for name in spec.queries)
    panel = (
        stat.Panel()
        .color_mode(common.BigValueColorMode.BACKGROUND_SOLID)
        .graph_mode(common.BigValueGraphMode.NONE if once else common.BigValueGraphMode.AREA)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    return finished(panel, spec, targets_of(spec.queries, context), context)


def heatmap_panel(spec: specs.Heatmap, context: Context) -> heatmap.Panel:
    """Return a panel of a histogram over time."""
    panel = (
        heatmap.Panel()
        .calculate(calculate=False)
        .color(
            heatmap.HeatmapColorOptions()
            .mode(heatmap_model.HeatmapColorMode.SCHEME)
            .scheme("Oranges")
            .scale(heatmap_model.HeatmapColorScale.EXPONENTIAL)
            .exponent(0.5)
            .fill("dark-orange")
            .steps(64)
        )
        # The smallest count that is shown: empty cells stay empty.
        .filter_values(heatmap.FilterValueRange().le(EXCEEDED))
        .y_axis(heatmap.YAxisConfig().unit(unit_of(spec.unit)))
        .tooltip(
            heatmap.HeatmapTooltip()
            .mode(common.TooltipDisplayMode.SINGLE)
            .y_histogram(y_histogram=True)
        )
        .exemplars_color("rgba(255,0,255,0.7)")
        .show_legend()
    )
    targets = targets_of(spec.queries, context, prometheus_model.PromQueryFormat.HEATMAP)
    return finished(panel, spec, targets, context)


def state_timeline(spec: specs.StateTimeline, context: Context) -> statetimeline.Panel:
    """Return a panel of states over time."""
    panel = (
        statetimeline.Panel()
        .merge_values(merge_values=True)
        .show_value(common.VisibilityMode.AUTO)
        .row_height(0.8)
        .fill_opacity(80)
        .line_width(0)
        .legend(
            common_builders.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(show_legend=bool(spec.states))
            .calcs([])
        )
    )
    if spec.states:
        panel.mappings([mapping({f"{value:g}": each for value, each in spec.states.items()})])
    return finished(panel, spec, targets_of(spec.queries, context), context)


def _highest(spec: specs.TimeSeries, context: Context) -> float:
    """Where the last of a panel's thresholds begins."""
    *_, begins = spec.thresholds.values()
    return context.threshold(begins)


def _name_overrides(panel: timeseries.Panel, spec: specs.TimeSeries) -> None:
    for pattern, colour in spec.colours.items():
        panel.override_by_regexp(f"/{pattern}/", [setting("color", fixed(colour))])
    for pattern, colour in spec.shades.items():
        shades = {"mode": "shades", "fixedColor": colour}
        panel.override_by_regexp(f"/{pattern}/", [setting("color", shades)])
    for pattern in spec.dashed:
        panel.override_by_regexp(
            f"/{pattern}/",
            [
                setting("color", fixed("red")),
                setting("custom.lineStyle", {"fill": "dash", "dash": [10, 10]}),
                setting("custom.fillOpacity", 0),
                setting("custom.stacking", {"mode": "none"}),
            ],
        )
    for pattern, unit in spec.right.items():
        panel.override_by_regexp(
            f"/{pattern}/",
            [
                setting("unit", unit_of(unit)),
                setting("custom.axisPlacement", "right"),
                setting("custom.drawStyle", "line"),
                setting("custom.fillOpacity", 0),
                setting("custom.stacking", {"mode": "none"}),
                setting("color", fixed("blue")),
            ],
        )
