"""Shipped rules over a timeline, as Prometheus' own rule engine evaluates them: promtool's."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moriio_observed.alerting import promtool
from moriio_observed.alerting.rules import Group, rules_of
from moriio_observed.dashboarding.promql import selectors
from tests.incident.timeline import EVERY_S, Timeline, Values

ALERTS = "ALERTS"
ALL = '{__name__=~"ALERTS|.+:.+"}'
"""Every recorded series and every alert."""

_EVALUATION = re.compile(r"time: (\S+),\s+exp: nil\s+got: (.*)")
_SAMPLE = re.compile(r'\{((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\} (\S+?)(?:, |$)')
_LABEL = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*")')
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


@dataclass(frozen=True, slots=True)
class Sample:
    """What a rule gave at one evaluation.

    Attributes:
        at_s: When, seconds since the timeline began.
        labels: With `__name__`.
        value: The value.
    """

    at_s: float
    labels: Mapping[str, str]
    value: float

    @property
    def firing(self) -> bool:
        """Whether it is an alert, and not merely pending."""
        return self.labels.get("alertstate") == "firing"


def evaluate(groups: list[Group], timeline: Timeline, asked: str = ALL) -> Sequence[Sample]:
    """Return what the rules gave, evaluation by evaluation.

    promtool says what it got wherever that is not what it was told to expect: it is told to expect
    nothing.

    Args:
        groups: The rules.
        timeline: What is evaluated.
        asked: A selector of what is to be returned.

    Raises:
        ValueError: promtool could not evaluate them; with what it said.
    """
    times = range(0, int(timeline.length_s) + EVERY_S, EVERY_S)
    expectations = [{"expr": asked, "eval_time": f"{at}s", "exp_samples": []} for at in times]
    passed, said = _tested(groups, {**_input(groups, timeline), "promql_expr_test": expectations})
    got = list(_samples(said))
    if " err: " in said or bool(got) == passed:
        raise ValueError(f"promtool could not evaluate the rules: {said.strip()}")
    return got


def words(groups: list[Group], timeline: Timeline, alert: str, at_s: float) -> Mapping[str, str]:
    """Return an alert's annotations at a time at which it fires.

    Raises:
        ValueError: It does not fire then, or more than once.
    """
    test = {"alertname": alert, "eval_time": f"{at_s:.0f}s", "exp_alerts": []}
    _, said = _tested(groups, {**_input(groups, timeline), "alert_rule_test": [test]})
    [annotations] = re.findall(r"Annotations:\{(.*)\}", said)
    return _labels(annotations)


def input_series(groups: list[Group], timeline: Timeline) -> list[dict[str, str]]:
    """What promtool takes for scraped: no more than the rules ask for, or it takes long."""
    asked = {each.name for rule in rules_of(groups) for each in selectors(rule["expr"])}
    return [
        {"series": name, "values": " ".join(_runs(_trimmed(values)))}
        for name, values in timeline.series.items()
        if name.partition("{")[0] in asked
    ]


def _input(groups: list[Group], timeline: Timeline) -> Mapping[str, Any]:
    return {
        "interval": f"{timeline.interval_s:g}s",
        "input_series": input_series(groups, timeline),
    }


def _tested(groups: list[Group], test: Mapping[str, Any]) -> tuple[bool, str]:
    file = {"evaluation_interval": f"{EVERY_S}s", "tests": [test]}
    return promtool.test(groups, {"replay.yaml": file})


def _trimmed(values: Values) -> Values:
    """Without the end at which nothing was scraped any more."""
    end = len(values)
    while end and values[end - 1] is None:
        end -= 1
    return values[:end]


def _runs(values: Values) -> Iterator[str]:
    """promtool's notation: `7x3` is a 7 and three more, `_x3` three times nothing."""
    for value, run in itertools.groupby(values):
        length = sum(1 for _ in run)
        if value is None:
            yield f"_x{length}"
        else:
            number = repr(value).removesuffix(".0")
            yield number if length == 1 else f"{number}x{length - 1}"


def _samples(said: str) -> Iterator[Sample]:
    for time, got in _EVALUATION.findall(said):
        for labels, value in _SAMPLE.findall(got):
            yield Sample(_seconds(time), _labels(labels), float(value))


def _labels(text: str) -> Mapping[str, str]:
    return {name: json.loads(quoted) for name, quoted in _LABEL.findall(text)}


def _seconds(duration: str) -> float:
    return sum(float(n) * _UNITS[unit] for n, unit in re.findall(r"([\d.]+)(ms|h|m|s)", duration))
