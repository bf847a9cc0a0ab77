"""The shipped rules on the recorded incident."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from moriio_observed.alerting.folder import Folder
from moriio_observed.alerting.rules import render_groups
from tests.incident.case import PATH, case
from tests.incident.recording import Recording, load
from tests.incident.rules import evaluate
from tests.incident.story import Replay, firings, healthy, replays, told, wrong_at
from tests.tools import needs

pytestmark = needs("promtool")

ROOT = Path(__file__).parents[3]
FOLDER = Folder(ROOT / "alerts")
GROUPS = render_groups(FOLDER.sources(), FOLDER.values())
PAGE = "MoriioUnprotectedSteps"


@pytest.fixture(scope="module")
def incident() -> Recording:
    return load("incident")


@pytest.fixture(scope="module")
def played(incident: Recording) -> list[Replay]:
    """However scrapes and evaluations fall upon the incident."""
    return list(replays(GROUPS, incident))


def test_nothing_fires_in_thirty_healthy_minutes() -> None:
    timeline = healthy(load("healthy"))
    assert timeline.length_s >= 30 * 60
    assert list(firings(evaluate(GROUPS, timeline))) == []


def test_what_pages_first_is_that_steps_are_unprotected(played: list[Replay]) -> None:
    assert {page.alert for replay in played if (page := replay.first_page)} == {PAGE}


def test_nobody_is_paged_before_a_read_is_late(incident: Recording, played: list[Replay]) -> None:
    assert incident.first_late_s is not None
    early = [
        firing
        for replay in played
        for firing in replay.firings
        if firing.pages and firing.at_s < incident.first_late_s
    ]
    assert early == []


def test_somebody_is_paged_before_one_answer_in_a_hundred_is_wrong(
    incident: Recording, played: list[Replay]
) -> None:
    wrong = wrong_at(incident)
    assert wrong is not None
    late = [replay.first_page for replay in played if replay.first_page]
    assert len(late) == len(played)
    assert [page for page in late if page.at_s >= wrong] == []


def test_the_first_page_names_the_cause_and_a_runbook_that_is_there(played: list[Replay]) -> None:
    first = played[0].first_page
    assert first is not None
    page = told(GROUPS, played[0], first)
    assert page["cause"] == "full_graph"
    assert page["cause"] in page["summary"]
    assert page["runbook_url"].endswith(f"/{PAGE}.md")
    assert (FOLDER.path / "runbooks" / f"{PAGE}.md").exists()


def test_the_case_for_promtool_is_made_of_the_recording(incident: Recording) -> None:
    """If not: `python -m tests.incident --case`. That it passes is shown with the other cases."""
    assert yaml.safe_load(PATH.read_text()) == case(GROUPS, incident)
