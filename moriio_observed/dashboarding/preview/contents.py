"""A dashboard together with all that Prometheus says to its queries: what the page draws."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.folder import Dashboard
from moriio_observed.dashboarding.preview import frames
from moriio_observed.dashboarding.preview.frames import Frame
from moriio_observed.dashboarding.preview.prometheus import Prometheus, RefusedError
from moriio_observed.dashboarding.preview.window import Window, in_seconds
from moriio_observed.dashboarding.queries import CHOOSABLE, interpolate
from moriio_observed.dashboarding.rules import parts

WIDTH = 1600
"""Of a picture, in pixels."""

_COLUMNS = 24
_SPECIAL = re.compile(r"[\\^$.*+?()\[\]{}|/]")


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks what dashboards ask.

    Attributes:
        prometheus: Whom.
        window: About which time.
        choices: What is chosen of each variable; everything where nothing is.
    """

    prometheus: Prometheus
    window: Window
    choices: Mapping[str, Sequence[str]]

    def __post_init__(self) -> None:
        if unknown := sorted(self.choices.keys() - CHOOSABLE):
            raise DashboardsError(
                f"no variable is called {unknown[0]}: it is one of {', '.join(sorted(CHOOSABLE))}"
            )

    def contents(self, dashboard: Dashboard) -> dict[str, Any]:
        """Return what the page draws: a dashboard, the frames and refusals of each panel, events.

        Raises:
            DashboardsError: Prometheus does not answer.
        """
        panels: dict[str, dict[str, Any]] = {}
        for panel in parts.panels(dashboard):
            try:
                panels[str(panel["id"])] = {"frames": list(self._frames(panel))}
            except RefusedError as error:
                panels[str(panel["id"])] = {"frames": [], "refused": str(error)}
        return {
            "dashboard": dashboard,
            "from": round(self.window.start * 1000),
            "to": round(self.window.end * 1000),
            "choices": {
                name: self.choices.get(name, ())
                for name in sorted(CHOOSABLE & parts.variables(dashboard).keys())
            },
            "panels": panels,
            "events": list(self._events(dashboard)),
        }

    def _frames(self, panel: Mapping[str, Any]) -> Iterator[Frame]:
        targets = panel["targets"]
        step = self.window.step(WIDTH * panel["gridPos"]["w"] // _COLUMNS)
        for target in targets:
            ref_id, legend = target["refId"], target.get("legendFormat", "")
            if target.get("instant"):
                moment = self.window.end
                answer = self.prometheus.now(self._query(target["expr"], step), moment)
                if target.get("format") == "table":
                    yield from frames.of_rows(ref_id, answer, alone=len(targets) == 1)
                else:
                    yield from frames.of_series(ref_id, legend, answer, [moment])
                continue
            times = self.window.times(step)
            answer = self.prometheus.over_time(self._query(target["expr"], step), times)
            if target.get("format") == "heatmap":
                yield from frames.of_buckets(ref_id, answer, times)
            else:
                yield from frames.of_series(ref_id, legend, answer, times)

    def _events(self, dashboard: Dashboard) -> Iterator[dict[str, Any]]:
        """What happened: from when to when a series of an annotation was there."""
        for shown in parts.shown_events(dashboard):
            target = shown["target"]
            step = max(self.window.step(WIDTH), in_seconds(target["interval"]))
            times = self.window.times(step)
            for series in self.prometheus.over_time(self._query(target["expr"], step), times):
                title = frames.called(shown["titleFormat"], series["metric"])
                for begin, end in spans([moment for moment, _ in series["values"]], step):
                    yield {
                        "title": title,
                        "colour": shown["iconColor"],
                        "from": round(begin * 1000),
                        "to": round(end * 1000),
                    }

    def _query(self, expr: str, step: float) -> str:
        return interpolate(
            expr,
            choices={name: _any_of(values) for name, values in self.choices.items()},
            rate_interval=f"{self.window.rate_interval(step):g}s",
            time_range=f"{self.window.seconds:.0f}s",
        )


def spans(moments: Sequence[float], step: float) -> Iterator[tuple[float, float]]:
    """Yield from when to when there were points without a gap.

    Args:
        moments: When there was a point, in seconds, rising.
        step: How far apart neighbours are.
    """
    begin = last = None
    for moment in moments:
        if begin is None or last is None or moment - last > step * 1.5:
            if begin is not None and last is not None:
                yield begin, last
            begin = moment
        last = moment
    if begin is not None and last is not None:
        yield begin, last


def _any_of(values: Sequence[str]) -> str:
    """What a choice is within the quotes of a query: a regular expression for just these values."""
    exact = [_SPECIAL.sub(lambda match: rf"\\{match[0]}", value) for value in values]
    return exact[0] if len(exact) == 1 else f"({'|'.join(exact)})"
