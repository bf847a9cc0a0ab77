"""Tables: a row for each set of labels, a column for each query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import table
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import prometheus as prometheus_model

from moriio_observed.dashboarding import links
from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.plugin import specs
from moriio_observed.dashboarding.plugin.common import finished
from moriio_observed.dashboarding.plugin.pieces import (
    Context,
    mapping,
    setting,
    targets_of,
    thresholds_of,
    unit_of,
)


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
    targets = targets_of(asking, context, prometheus_model.PromQueryFormat.TABLE)
    return finished(panel, spec, [target.instant() for target in targets], context)


def _cell(
    column: specs.Column, titles: Mapping[str, str], context: Context
) -> list[model.DynamicConfigValue]:
    properties = []
    if unit := column.unit or _unit_of_label(column):
        properties.append(setting("unit", unit_of(unit)))
    if column.decimals is not None:
        properties.append(setting("decimals", column.decimals))
    if column.width is not None:
        properties.append(setting("custom.width", column.width))
    if column.thresholds:
        thresholds = thresholds_of(column.thresholds, context).build()
        properties.append(setting("thresholds", thresholds))
    if column.colours:
        coloured = {text: (text, colour) for text, colour in column.colours.items()}
        properties.append(setting("mappings", [mapping(coloured)]))
    if column.bar:
        bar = {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"}
        properties.append(setting("custom.cellOptions", bar))
        properties.append(setting("min", 0))
        # Else a bar is held against the largest number of the whole table.
        properties.append(setting("fieldMinMax", value=True))
    elif column.thresholds or column.colours:
        properties.append(setting("custom.cellOptions", {"type": "color-text"}))
    if column.link:
        ((title, name),) = links.titles([column.link])
        url = links.to_dashboard_of_row(name, titles)
        properties.append(setting("links", [{"title": title, "url": url}]))
    if column.runbook:
        url = links.to_runbook("${__value.raw}")
        runbook = {"title": "Runbook", "url": url, "targetBlank": True}
        properties.append(setting("links", [runbook]))
    return properties


def _unit_of_label(column: specs.Column) -> str:
    """What keeps the panel's unit from a label that looks like a number, such as an engine's."""
    if not column.label:
        return ""
    return "none" if column.number else "string"


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
