"""What a panel in the YAML may say. A key that is not here is refused, and a missing one told."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from moriio_observed.dashboarding.errors import DashboardsError


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Anything that is read from one mapping of the YAML."""

    @classmethod
    def parse(cls, data: Any, where: str) -> Self:
        """Return what a mapping says.

        Args:
            data: The mapping.
            where: What it is about, for the error.

        Raises:
            DashboardsError: A key is unknown or missing.
        """
        if not isinstance(data, Mapping):
            raise DashboardsError(f"{where} is a mapping, not {data!r}")
        fields = dataclasses.fields(cls)
        known = [each.name for each in fields]
        if unknown := sorted(set(data) - set(known)):
            raise DashboardsError(f"{where}: {unknown[0]} is none of {', '.join(known)}")
        needed = [each.name for each in fields if _is_needed(each)]
        if missing := [name for name in needed if name not in data]:
            raise DashboardsError(f"{where}: no {' and no '.join(missing)}")
        return cls(**data)


def _is_needed(each: dataclasses.Field[Any]) -> bool:
    return each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING


@dataclass(frozen=True, kw_only=True)
class Panel(Spec):
    """What every panel says.

    Attributes:
        title: Its name.
        description: What it means at night, and what to do.
        unit: Grafana's id of the unit.
        width: Of the 24 columns of a dashboard.
        height: In grid rows.
        thresholds: Colours and where they begin: a number, or the name of a threshold of the
            alerts. The first, `base`, is the colour below all.
        decimals: How many are shown.
        min: Where the scale begins.
        max: Where it ends.
        no_value: What is shown where there is no series.
        links: Dashboards to go on to.
        runbooks: Alerts whose runbooks say what to do.
    """

    title: str
    description: str
    unit: str
    width: int
    height: int
    thresholds: Mapping[str, float | str]
    decimals: int | None = None
    min: float | None = None
    max: float | None = None
    no_value: str | None = None
    links: Sequence[str] = ()
    runbooks: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Asking(Panel):
    """A panel of some queries.

    Attributes:
        queries: Their names in the catalogue.
    """

    queries: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class TimeSeries(Asking):
    """Lines or bars over time.

    Attributes:
        bars: Bars instead of lines.
        stacked: One series upon the other.
        log: A logarithmic scale.
        draw_thresholds: Whether thresholds are drawn as lines.
        colours: The colour of series whose name matches.
        shades: A colour for each name that matches, in shades where several series do.
        dashed: Names drawn as a red dashed line: a limit, not a measurement.
        right: Names with an axis of their own on the right, and its unit.
    """

    bars: bool = False
    stacked: bool = False
    log: bool = False
    draw_thresholds: bool = False
    colours: Mapping[str, str] = field(default_factory=dict)
    shades: Mapping[str, str] = field(default_factory=dict)
    dashed: Sequence[str] = ()
    right: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Stat(Asking):
    """One number, large, in the colour of its threshold."""


@dataclass(frozen=True, kw_only=True)
class Heatmap(Asking):
    """A histogram over time."""


@dataclass(frozen=True, kw_only=True)
class StateTimeline(Asking):
    """States over time, a row each.

    Attributes:
        states: The text and colour of each value; where there are none, thresholds colour.
    """

    states: Mapping[float, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Table(Panel):
    """A table of labels and of one column for each query.

    Attributes:
        columns: From left to right.
        sort: The title of the column to sort by, the largest first.
        ascending: The smallest first.
    """

    columns: Sequence[Mapping[str, Any]]
    sort: str
    ascending: bool = False


@dataclass(frozen=True, kw_only=True)
class Column(Spec):
    """One column, of a label or of a query.

    Attributes:
        title: Its head.
        label: The label it shows.
        query: Or the query.
        unit: Grafana's id of the unit; where unsaid the panel's, and none for a label.
        decimals: How many are shown.
        thresholds: As of a panel; they colour the cell.
        bar: Whether a bar in the cell shows how much it is.
        number: Whether a label's value is a number, and sorts as one.
        width: In pixels.
        link: The dashboard that a click goes on to, with the row's labels chosen.
        runbook: Whether a click goes to the runbook of the alert that the cell names.
        colours: The colours of texts.
    """

    title: str
    label: str = ""
    query: str = ""
    unit: str = ""
    decimals: int | None = None
    thresholds: Mapping[str, float | str] = field(default_factory=dict)
    bar: bool = False
    number: bool = False
    width: int | None = None
    link: str = ""
    runbook: bool = False
    colours: Mapping[str, str] = field(default_factory=dict)
