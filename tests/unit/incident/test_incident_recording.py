"""What was recorded is what it is said to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from moriio_observed.alerting.folder import Folder as AlertsFolder
from moriio_observed.alerting.queries import Queries
from moriio_observed.alerting.rules import render_groups, rules_of
from moriio_observed.dashboarding.folder import Folder
from moriio_observed.dashboarding.promql import ALERTS, selectors
from moriio_observed.dashboarding.queries import interpolate
from moriio_observed.dashboarding.rules.parts import expressions
from moriio_observed.demo.metrics import parse
from tests.canary.page import fresh_page
from tests.incident.recording import FOLDER, HEALTHY, INCIDENT, RIGHT, WRONG, load

ROOT = Path(__file__).parents[3]
ALERTS_FOLDER = AlertsFolder(ROOT / "alerts")
DASHBOARDS = Folder(ROOT / "dashboards", ALERTS_FOLDER)
RULES = list(rules_of(render_groups(ALERTS_FOLDER.sources(), ALERTS_FOLDER.values())))
TARGET = frozenset({"job", "instance"})
MOST_BYTES = 500_000


@pytest.fixture(scope="module", params=[HEALTHY, INCIDENT], ids=["healthy", "incident"])
def recording(request):
    return load(request.param)


def test_both_are_compact() -> None:
    assert sum(path.stat().st_size for path in FOLDER.glob("*.gz")) < MOST_BYTES


def test_every_answer_was_given_and_judged(recording) -> None:
    assert {answer.outcome for answer in recording.answers} <= {RIGHT, WRONG}
    assert len(recording.answers) > 500


def test_every_wrong_answer_was_exposed_and_the_log_said_so(recording) -> None:
    missed = [a for a in recording.answers if a.outcome == WRONG and not a.exposed]
    assert missed == []


def test_healthy_is_without_a_wrong_answer_and_without_an_exposed_one() -> None:
    answers = load(HEALTHY).answers
    assert {(answer.outcome, answer.exposed) for answer in answers} == {(RIGHT, "")}


def test_the_incident_is_right_before_a_read_is_late_and_salad_at_the_end() -> None:
    incident = load(INCIDENT)
    end_s = incident.length_s
    before = [a for a in incident.answers if a.given_s < incident.first_late_s]
    last = [a for a in incident.answers if a.given_s > end_s - 60]
    assert {answer.outcome for answer in before} == {RIGHT}
    assert sum(answer.outcome == WRONG for answer in last) > len(last) / 2


def test_counters_say_what_the_answers_say(recording) -> None:
    """Each request that was asked and answered between two scrapes is one that was read."""
    [read] = [
        values
        for name, values in recording.series.items()
        if name.startswith("moriio_requests_total{") and 'job="decode"' in name
    ]
    end_s = recording.length_s
    inside = [answer for answer in recording.answers if answer.given_s < end_s]
    assert read[-1] - read[0] == pytest.approx(len(inside), abs=40)


def asked_for() -> set[str]:
    """Every metric that a rule, a panel or an annotation asks for."""
    panels = {
        interpolate(expr)
        for dashboard in DASHBOARDS.built().values()
        for _, expr in expressions(dashboard)
    }
    rules = {rule["expr"] for rule in RULES}
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    names = {each.name for expr in panels | rules for each in selectors(expr)}
    return names - recorded - {ALERTS}


def test_every_metric_and_label_of_rules_and_panels_is_on_the_recorded_pages_or_a_canarys() -> None:
    exposed = {
        (name, frozenset(label for label, _ in labels))
        for page in (*load(INCIDENT).pages.values(), fresh_page())
        for name, labels in parse(page).samples
    }
    queries = Queries(TARGET, {})
    wanted = {(name, queries.labels(name) - TARGET) for name in asked_for()}
    assert queries.problems == []
    assert wanted - exposed == set()
