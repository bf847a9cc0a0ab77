"""From what the YAML says to Grafana's panels, through its foundation SDK."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import (
    dashboard as dashboards,
)
from grafana_foundation_sdk.builders import (
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models import common, units
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import heatmap as heatmap_model
from grafana_foundation_sdk.models import prometheus as prometheus_model

from moriio_observed.alerting.values import Values
from moriio_observed.dashboarding import links, specs
from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.queries import Query

DATASOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
EXCEEDED = 1e-9
"""An alert fires above 0, a colour begins at its value: so it begins at next to nothing."""

AnyPanel = timeseries.Panel | stat.Panel | heatmap.Panel | statetimeline.Panel | table.Panel

P = TypeVar("P", bound=AnyPanel)

_UNITS = {value for name, value in vars(units).items() if isinstance(value, str) and name[0] != "_"}


@dataclass(frozen=True, slots=True)
class Context:
    """What panels are made with.

    Attributes:
        queries: The catalogue.
        values: The values of the alerts, whose thresholds panels share.
        asked: The names of the queries that were asked for so far.
    """

    queries: Mapping[str, Query]
    values: Values
    asked: set[str]

    def query(self, name: str) -> Query:
        """Return a query of the catalogue, and note that somebody asks it.

        Raises:
            DashboardsError: There is no such.
        """
        if name not in self.queries:
            raise DashboardsError(f"no query is called {name}: see queries.yaml")
        self.asked.add(name)
        return self.queries[name]

    def threshold(self, value: float | str) -> float:
        """Return a number, or the number of a threshold of the alerts.

        Raises:
            DashboardsError: No threshold has this name.
        """
        if not isinstance(value, str):
            return value
        try:
            return float(self.values["thresholds"][value]) or EXCEEDED
        except KeyError:
            raise DashboardsError(f"no threshold is called {value}: see values.yaml") from None


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
    _name_overrides(panel, spec)
    return _finished(panel, spec, _targets(spec.queries, context), context)


def stat_panel(spec: specs.Stat, context: Context) -> stat.Panel:
    """Return a panel of one number; what is asked over time has its past behind it."""
    once = all(context.query(name).once for name in spec.queries)
    panel = (
        stat.Panel()
        .color_mode(common.BigValueColorMode.BACKGROUND_SOLID)
        .graph_mode(common.BigValueGraphMode.NONE if once else common.BigValueGraphMode.AREA)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    return _finished(panel, spec, _targets(spec.queries, context), context)


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
        .y_axis(heatmap.YAxisConfig().unit(_unit(spec.unit)))
        .tooltip(
            heatmap.HeatmapTooltip()
            .mode(common.TooltipDisplayMode.SINGLE)
            .y_histogram(y_histogram=True)
        )
        .exemplars_color("rgba(255,0,255,0.7)")
        .show_legend()
    )
    targets = _targets(spec.queries, context, prometheus_model.PromQueryFormat.HEATMAP)
    return _finished(panel, spec, targets, context)


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
        panel.mappings([_mapping({f"{value:g}": each for value, each in spec.states.items()})])
    return _finished(panel, spec, _targets(spec.queries, context), context)


def table_panel(spec: specs.Table, context: Context) -> table.Panel:
    """Return a table."""
    columns = [specs.Column.parse(column, f"a column of {spec.title!r}") for column in spec.columns]
    asking = [column.query for column in columns if column.query]
    panel = (
        table.Panel()
        .cell_height(common.TableCellHeight.SM)
        .filterable(filterable=True)
        .cell_options(common.TableAutoCellOptions())
        .sort_by(
            [
                common_builders.TableSortByFieldState()
                .display_name(spec.sort)
                .desc(not spec.ascending)
            ]
        )
        .transformations(_arranged(columns))
    )
    titles = {column.label: column.title for column in columns if column.label}
    for column in columns:
        panel.override_by_name(column.title, _cell(column, titles, context))
    if spec.sort not in {column.title for column in columns}:
        raise DashboardsError(f"{spec.title!r} has no column {spec.sort} to sort by")
    targets = _targets(asking, context, prometheus_model.PromQueryFormat.TABLE)
    return _finished(panel, spec, [target.instant() for target in targets], context)


def target(query: Query, ref_id: str) -> prometheus.Dataquery:
    """Return a query as a panel or annotation asks it."""
    asked = (
        prometheus.Dataquery()
        .ref_id(ref_id)
        .datasource(DATASOURCE)
        .editor_mode(prometheus_model.QueryEditorMode.CODE)
        .expr(query.expr)
    )
    if query.legend:
        asked.legend_format(query.legend)
    return asked.instant() if query.once else asked.range()


def _targets(
    names: Sequence[str],
    context: Context,
    form: prometheus_model.PromQueryFormat = prometheus_model.PromQueryFormat.TIME_SERIES,
) -> list[prometheus.Dataquery]:
    targets = []
    for number, name in enumerate(names):
        query = context.query(name)
        asked = target(query, chr(ord("A") + number)).format(form)
        if query.has_exemplars and form is not prometheus_model.PromQueryFormat.TABLE:
            asked.exemplar(exemplar=True)
        targets.append(asked)
    return targets


def _finished(
    panel: P, spec: specs.Panel, targets: Iterable[prometheus.Dataquery], context: Context
) -> P:
    """The panel with what all of them have."""
    panel.title(spec.title).description(" ".join(spec.description.split()))
    panel.unit(_unit(spec.unit)).thresholds(_thresholds(spec.thresholds, context))
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


def _unit(unit: str) -> str:
    if unit not in _UNITS:
        raise DashboardsError(f"Grafana has no unit {unit!r}")
    return unit


def _thresholds(spec: Mapping[str, float | str], context: Context) -> dashboards.ThresholdsConfig:
    if "base" not in spec:
        raise DashboardsError(f"thresholds begin with the colour of their base, not {dict(spec)}")
    begins = {
        colour: context.threshold(value) for colour, value in spec.items() if colour != "base"
    }
    if list(begins.values()) != sorted(begins.values()):
        raise DashboardsError(f"thresholds rise, not {begins}")
    base = model.Threshold(value=None, color=str(spec["base"]))
    steps = [model.Threshold(value=value, color=colour) for colour, value in begins.items()]
    return dashboards.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps([base, *steps])


def _name_overrides(panel: timeseries.Panel, spec: specs.TimeSeries) -> None:
    for pattern, colour in spec.colours.items():
        panel.override_by_regexp(f"/{pattern}/", [_property("color", _fixed(colour))])
    for pattern, colour in spec.shades.items():
        shades = {"mode": "shades", "fixedColor": colour}
        panel.override_by_regexp(f"/{pattern}/", [_property("color", shades)])
    for pattern in spec.dashed:
        panel.override_by_regexp(
            f"/{pattern}/",
            [
                _property("color", _fixed("red")),
                _property("custom.lineStyle", {"fill": "dash", "dash": [10, 10]}),
                _property("custom.fillOpacity", 0),
                _property("custom.stacking", {"mode": "none"}),
            ],
        )
    for pattern, unit in spec.right.items():
        panel.override_by_regexp(
            f"/{pattern}/",
            [
                _property("unit", _unit(unit)),
                _property("custom.axisPlacement", "right"),
                _property("custom.drawStyle", "line"),
                _property("custom.fillOpacity", 0),
                _property("custom.stacking", {"mode": "none"}),
                _property("color", _fixed("blue")),
            ],
        )


def _cell(
    column: specs.Column, titles: Mapping[str, str], context: Context
) -> list[model.DynamicConfigValue]:
    properties = []
    if column.unit:
        properties.append(_property("unit", _unit(column.unit)))
    if column.decimals is not None:
        properties.append(_property("decimals", column.decimals))
    if column.width is not None:
        properties.append(_property("custom.width", column.width))
    if column.thresholds:
        thresholds = _thresholds(column.thresholds, context).build()
        properties.append(_property("thresholds", thresholds))
    if column.colours:
        coloured = {text: (text, colour) for text, colour in column.colours.items()}
        properties.append(_property("mappings", [_mapping(coloured)]))
    if column.bar:
        bar = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
        properties.append(_property("custom.cellOptions", bar))
        properties.append(_property("min", 0))
    elif column.thresholds or column.colours:
        properties.append(_property("custom.cellOptions", {"type": "color-text"}))
    if column.link:
        ((title, name),) = links.titles([column.link])
        url = links.to_dashboard_of_row(name, titles)
        properties.append(_property("links", [{"title": title, "url": url}]))
    if column.runbook:
        url = links.to_runbook("${__value.raw}")
        runbook = {"title": "Runbook", "url": url, "targetBlank": True}
        properties.append(_property("links", [runbook]))
    return properties


def _arranged(columns: Sequence[specs.Column]) -> list[model.DataTransformerConfig]:
    """One row for each set of labels, the columns in order and with their titles."""
    asking = [column for column in columns if column.query]
    single = len(asking) == 1
    fields = {
        column.title: column.label
        or ("Value" if single else f"Value #{chr(ord('A') + asking.index(column))}")
        for column in columns
    }
    numbers = [
        {"targetField": column.label, "destinationType": "number"}
        for column in columns
        if column.number
    ]
    arranged = [
        model.DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": {"Time": True},
                "indexByName": {name: index for index, name in enumerate(fields.values())},
                "renameByName": {name: title for title, name in fields.items()},
            },
        )
    ]
    if numbers:
        convert = model.DataTransformerConfig(
            id_val="convertFieldType", options={"conversions": numbers, "fields": {}}
        )
        arranged.insert(0, convert)
    if not single:
        arranged.insert(0, model.DataTransformerConfig(id_val="merge", options={}))
    return arranged


def _mapping(texts: Mapping[str, Sequence[str]]) -> model.ValueMap:
    return model.ValueMap(
        options={
            value: model.ValueMappingResult(text=text, color=colour, index=index)
            for index, (value, (text, colour)) in enumerate(texts.items())
        }
    )


def _fixed(colour: str) -> dict[str, str]:
    return {"mode": "fixed", "fixedColor": colour}


def _property(name: str, value: Any) -> model.DynamicConfigValue:
    return model.DynamicConfigValue(id_val=name, value=value)
