"""`moriio-observed dashboards preview`: what it refuses before it draws."""

import argparse
import shutil
from pathlib import Path

import pytest

from moriio_observed.cli import dashboards
from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.preview import browser

ROOT = Path(__file__).parents[3]


def preview(*words: str) -> int:
    parser = argparse.ArgumentParser()
    dashboards.add_arguments(parser)
    places = ["--dir", str(ROOT / "dashboards"), "--alerts", str(ROOT / "alerts")]
    said = ["preview", "--prometheus", "http://127.0.0.1:1", *places, *words]
    return dashboards.run(parser.parse_args(said))


@pytest.mark.parametrize("choice", ["engine", "engine=", "=0"])
def test_a_choice_without_name_or_value_is_told_with_the_right_form(choice) -> None:
    with pytest.raises(DashboardsError, match=f"--var {choice}: write it like engine=0"):
        preview("--var", choice)


def test_a_choice_of_no_variable_is_told() -> None:
    with pytest.raises(DashboardsError, match="no variable is called layer"):
        preview("--var", "layer=1")


def test_an_unknown_dashboard_is_told_with_those_there_are() -> None:
    with pytest.raises(DashboardsError, match=r"no dashboard has the uid fleet: .*moriio-fleet"):
        preview("--dashboard", "fleet")


def test_a_beginning_and_a_length_are_one_too_many() -> None:
    with pytest.raises(DashboardsError, match="--from and --range both say"):
        preview("--from", "0", "--range", "1h")


def test_the_prometheus_that_does_not_answer_is_told_before_anything_is_built() -> None:
    with pytest.raises(DashboardsError, match=r"no Prometheus answers at http://127\.0\.0\.1:1: "):
        preview("--page", "nowhere")


def test_a_missing_browser_is_told(monkeypatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(DashboardsError, match="chromium is not installed: apt-get install"):
        browser.find_chromium()
