"""The shipped dashboards on what was recorded, asked of a real Prometheus.

The incident follows upon the healthy minutes: those have waits, `upstream` under FULL has none. A
canary was not recorded; beside them is one of ours that asks a stand-in.
"""

from __future__ import annotations

import json
import math
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moriio_observed.alerting.folder import Folder as AlertsFolder
from moriio_observed.alerting.rules import render_groups
from moriio_observed.dashboarding.folder import Folder
from moriio_observed.dashboarding.queries import RANGE, interpolate
from moriio_observed.dashboarding.rules.parts import expressions
from moriio_observed.demo import web
from tests.incident.backfill import watched
from tests.incident.canary import with_canary
from tests.incident.recording import HEALTHY, INCIDENT, load
from tests.incident.rules import evaluate
from tests.incident.timeline import aligned
from tests.monitoring import PROMETHEUS
from tests.tools import needs

pytestmark = needs(PROMETHEUS, "promtool")

ROOT = Path(__file__).parents[3]
ALERTS = AlertsFolder(ROOT / "alerts")
FOLDER = Folder(ROOT / "dashboards", ALERTS)
BEGAN = 1_800_000_000.0
STEP_S = 15
RESTART_S = 60.0

EMPTY = {
    "read-barrier: panel 'Waits by layer', query B": (
        "a replay of a FULL graph calls no layer hook, so each wait stands before the forward"
    ),
}
"""Queries that find nothing in what was recorded, each with the reason why they must not."""


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Asks as a dashboard over all that was recorded does; gives the values it would draw."""
    groups = render_groups(ALERTS.sources(), ALERTS.values())
    timeline = with_canary(aligned(load(HEALTHY)), RESTART_S, load(INCIDENT))
    length = int(timeline.length_s)
    folder = tmp_path_factory.mktemp("watched")
    with watched(folder, timeline, evaluate(groups, timeline), BEGAN) as url:

        def ask(query: str) -> list[float]:
            expr = interpolate(query, rate_interval="1m", time_range=f"{length}s")
            words = {"query": expr, "start": BEGAN, "end": BEGAN + length, "step": STEP_S}
            if RANGE in query:
                words |= {"start": BEGAN + length}
            answer = web.get(f"{url}/api/v1/query_range?{urllib.parse.urlencode(words)}")
            series = json.loads(answer)["data"]["result"]
            values = [float(value) for each in series for _, value in each["values"]]
            return [value for value in values if not math.isnan(value)]

        yield ask


def queries() -> dict[str, str]:
    return {
        f"{name.removesuffix('.json')}: {who}": expr
        for name, dashboard in FOLDER.built().items()
        for who, expr in expressions(dashboard)
    }


def test_every_query_of_every_panel_finds_something_on_what_was_recorded(ask: Any) -> None:
    silent = {who for who, expr in queries().items() if who not in EMPTY and not ask(expr)}
    assert silent == set()


def test_what_is_said_to_find_nothing_finds_nothing(ask: Any) -> None:
    asked = queries()
    assert {who for who in EMPTY if ask(asked[who])} == set()
