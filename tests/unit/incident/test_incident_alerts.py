"""The shipped rules on the recorded incident."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from moriio_observed.alerting.folder import Folder
from moriio_observed.alerting.rules import render_groups
from tests.incident.case import PATH, case
from tests.incident.recording import HEALTHY, INCIDENT, load
from tests.incident.rules import evaluate
from tests.incident.story import PAGE, Story, healthy, story
from tests.tools import needs

pytestmark = needs("promtool")

ROOT = Path(__file__).parents[3]
FOLDER = Folder(ROOT / "alerts")
GROUPS = render_groups(FOLDER.sources(), FOLDER.values())


@pytest.fixture(scope="module")
def told() -> Story:
    return story(GROUPS, load(INCIDENT), load(HEALTHY))


def test_the_incident_is_accepted(told: Story) -> None:
    assert list(told.shortfalls()) == []


def test_nothing_fires_in_thirty_healthy_minutes(told: Story) -> None:
    assert told.healthy_s >= 30 * 60
    assert list(told.false_alarms) == []


def test_rules_see_the_healthy_minutes_to_their_end() -> None:
    timeline = healthy(load(HEALTHY))
    seen = evaluate(GROUPS, timeline, "engine:moriio_requests:rate5m > 0")
    assert max(sample.at_s for sample in seen) > timeline.length_s - 60


def test_what_pages_first_is_that_steps_are_unprotected(told: Story) -> None:
    assert {page.alert for replay in told.replays if (page := replay.first_page)} == {PAGE}


def test_somebody_is_paged_after_a_read_is_late_and_before_one_answer_in_a_hundred_is_wrong(
    told: Story,
) -> None:
    assert told.wrong_s is not None
    assert len(told.paged_s) == len(told.replays) == 9
    assert 0 <= told.paged_s[0] <= told.paged_s[-1] < told.wrong_s


def test_the_first_page_names_the_cause_and_a_runbook_that_is_there(told: Story) -> None:
    page = told.first_page
    assert page is not None
    assert page["cause"] == "full_graph"
    assert page["cause"] in page["summary"]
    assert page["runbook_url"].endswith(f"/{PAGE}.md")
    assert (FOLDER.path / "runbooks" / f"{PAGE}.md").exists()


def test_the_case_for_promtool_is_made_of_the_recording() -> None:
    """If not: `python -m tests.incident --case`. That it passes is shown with the other cases."""
    assert yaml.safe_load(PATH.read_text()) == case(GROUPS, load(INCIDENT))
