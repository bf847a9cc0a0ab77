"""The incident as a case for promtool, so that anybody's thresholds can be tried on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moriio_observed.alerting.rules import Group
from moriio_observed.alerting.yaml_text import to_yaml
from tests.incident.recording import Recording
from tests.incident.rules import ALERTS, evaluate, input_series
from tests.incident.story import Firing, firings
from tests.incident.timeline import EVERY_S, aligned

PATH = Path(__file__).parents[2] / "alerts" / "tests" / "recorded.yaml"
PAGES = 'count by (alertname) (ALERTS{alertstate="firing", severity="page"})'
HEADER = """\
# The recorded incident (../incident): what pages, and when.
# Made by `python -m tests.incident --case`.
"""


def case(groups: list[Group], recording: Recording) -> Mapping[str, Any]:
    """Return a test file: nobody is paged, then somebody is, each at the evaluation it came at.

    Args:
        groups: The rules.
        recording: The incident. It is scraped when rules are evaluated.
    """
    timeline = aligned(recording)
    pages = [each for each in firings(evaluate(groups, timeline, ALERTS)) if each.pages]
    times = sorted({each.at_s - ago for each in pages for ago in (EVERY_S, 0)})
    test = {
        "name": "MoriioUnprotectedSteps fires on a recorded incident",
        "interval": f"{EVERY_S}s",
        "input_series": input_series(groups, timeline),
        "promql_expr_test": [_expected(at_s, pages) for at_s in times],
    }
    return {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": f"{EVERY_S}s",
        "tests": [test],
    }


def _expected(at_s: float, pages: Sequence[Firing]) -> Mapping[str, Any]:
    """What pages at a time; none of the pages ends before the recording does."""
    fired = Counter(page.alert for page in pages if page.at_s <= at_s)
    return {
        "expr": PAGES,
        "eval_time": f"{at_s:.0f}s",
        "exp_samples": [
            {"labels": f'{{alertname="{alert}"}}', "value": count} for alert, count in fired.items()
        ],
    }


def write(groups: list[Group], recording: Recording) -> None:
    """Write it beside the other tests of the rules."""
    PATH.write_text(HEADER + to_yaml(case(groups, recording)), encoding="utf-8")
