"""Pushing over real HTTP to another process that speaks Grafana's endpoints. It is no Grafana."""

import argparse
import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from moriio_observed.cli import dashboards
from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.push import Step, Target
from tests.unit.dashboarding.grafana_server import TOKEN

ROOT = Path(__file__).parents[3]
OURS = {
    path.name: json.loads(path.read_text()) for path in (ROOT / "dashboards/json").glob("*.json")
}
SALAD = "moriio-salad-watch"


@pytest.fixture
def grafana():
    """The address of a server of its own for each test."""
    server = Path(__file__).with_name("grafana_server.py")
    with subprocess.Popen(
        [sys.executable, server], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate()


@pytest.fixture
def push(grafana, monkeypatch):
    monkeypatch.setenv("GRAFANA_TOKEN", TOKEN)

    def run(*words: str) -> int:
        parser = argparse.ArgumentParser()
        dashboards.add_arguments(parser)
        places = ["--dir", f"{ROOT}/dashboards", "--alerts", f"{ROOT}/alerts", "--url", grafana]
        return dashboards.run(parser.parse_args(["push", *places, *words]))

    return run


def ask(url: str, method: str = "GET", body: object = None) -> dict:
    request = urllib.request.Request(  # noqa: S310 - loopback
        url,
        method=method,
        data=json.dumps(body).encode() if body is not None else None,
        headers={"Authorization": f"Bearer {TOKEN}"},
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        return json.load(answer)


def there(grafana: str, uid: str = SALAD) -> dict:
    return ask(f"{grafana}/api/dashboards/uid/{uid}")


def put(grafana: str, **changes: object) -> None:
    """A dashboard with the uid of one of ours, as somebody else left it."""
    dashboard = {**OURS["salad-watch.json"], "version": 3, **changes.pop("dashboard", {})}
    ask(f"{grafana}/", "PUT", {"dashboard": dashboard, "meta": {"folderUid": "theirs"}, **changes})


@pytest.fixture
def push_own(push, tmp_path):
    """Push a dashboard of the user's own, alone in a folder."""

    def run(dashboard: dict, *words: str) -> int:
        (tmp_path / "own.json").write_text(json.dumps(dashboard))
        return push("--dir", str(tmp_path), *words)

    return run


def test_a_dashboard_without_variables_goes_with_the_users_values_too(
    push_own, tmp_path, capsys
) -> None:
    values = tmp_path / "mine.yaml"
    values.write_text("links: {runbooks: 'https://git.example/mine/'}")
    assert push_own({"uid": "own", "title": "Own", "panels": []}, "--values", str(values)) == 0
    assert "create  own (Own)" in capsys.readouterr().out


def test_a_dashboard_that_grafana_could_not_tell_from_others_is_named(push_own) -> None:
    with pytest.raises(DashboardsError, match=r"own.json has no uid and no title"):
        push_own({"panels": []})


def test_a_dry_run_says_what_would_change_and_changes_nothing(push, grafana, capsys) -> None:
    assert push() == 0
    said = capsys.readouterr().out
    assert f"create  {SALAD} (MoRIIO / Salad watch)" in said
    assert "nothing was changed: --apply makes these 4 changes" in said
    with pytest.raises(urllib.error.HTTPError, match="404"):
        there(grafana)


def test_applied_every_dashboard_is_in_the_folder_that_was_made_for_it(push, grafana) -> None:
    assert push("--apply", "--folder-uid", "mine", "--folder-title", "Mine") == 0
    assert ask(f"{grafana}/api/folders/mine")["title"] == "Mine"
    for ours in OURS.values():
        found = there(grafana, ours["uid"])
        assert found["meta"]["folderUid"] == "mine"
        assert found["dashboard"]["panels"] == ours["panels"]


@pytest.mark.parametrize("below", ["/", "/grafana", "/grafana/"])
def test_a_grafana_below_a_path_is_found(push, grafana, below) -> None:
    assert push("--apply", "--url", grafana + below) == 0
    assert there(grafana)["dashboard"]["uid"] == SALAD


def test_a_second_push_finds_all_the_same_and_writes_nothing(push, grafana, capsys) -> None:
    push("--apply")
    capsys.readouterr()
    assert push("--apply") == 0
    assert capsys.readouterr().out.count("same") == len(OURS)
    assert there(grafana)["dashboard"]["version"] == 1


def test_what_differs_is_named_by_its_panels(push, grafana, capsys) -> None:
    panels = [dict(panel) for panel in OURS["salad-watch.json"]["panels"]]
    gone = panels.pop(1)["title"]
    panels[1]["description"] = "theirs"
    panels.append({"title": "Of theirs", "type": "stat"})
    put(grafana, dashboard={"panels": panels, "refresh": "5s"})
    push()
    said = capsys.readouterr().out
    assert f"+ {gone}, - Of theirs, ~ {panels[1]['title']}, ~ refresh of the dashboard" in said, (
        said
    )


def test_a_dashboard_stays_in_the_folder_to_which_somebody_moved_it(push, grafana) -> None:
    ask(f"{grafana}/api/folders", "POST", {"uid": "theirs", "title": "Theirs"})
    put(grafana, dashboard={"refresh": "5s"})
    push("--apply")
    found = there(grafana)
    assert found["meta"]["folderUid"] == "theirs"
    assert found["dashboard"]["version"] == 4


def test_a_dashboard_that_is_not_ours_is_refused_unless_told_to_overwrite(
    push, grafana, capsys
) -> None:
    ask(f"{grafana}/api/folders", "POST", {"uid": "theirs", "title": "Theirs"})
    put(grafana, dashboard={"tags": ["other"]})
    assert push("--apply") == 1
    assert "refused" in capsys.readouterr().out
    assert there(grafana)["dashboard"]["tags"] == ["other"]
    assert push("--apply", "--overwrite") == 0
    assert there(grafana)["dashboard"]["tags"] == ["moriio"]


def test_a_provisioned_dashboard_is_refused(push, grafana, capsys) -> None:
    put(grafana, dashboard={"refresh": "5s"}, meta={"provisioned": True})
    assert push("--apply", "--overwrite") == 1
    assert "it is provisioned from a file" in capsys.readouterr().out
    assert there(grafana)["dashboard"]["refresh"] == "5s"


def test_what_somebody_changed_after_the_plan_is_not_overwritten(grafana) -> None:
    put(grafana, dashboard={"refresh": "5s"})
    ask(f"{grafana}/api/folders", "POST", {"uid": "theirs", "title": "Theirs"})
    target = Target(grafana, TOKEN, "moriio", "MoRIIO")
    plan = target.plan({"a": OURS["salad-watch.json"]}, overwrite=False)
    assert [planned.step for planned in plan] == [Step.CHANGE]
    put(grafana, dashboard={"refresh": "1m", "version": 4})
    with pytest.raises(DashboardsError, match="somebody changed a dashboard"):
        target.apply(plan)
    assert there(grafana)["dashboard"]["refresh"] == "1m"


def test_links_to_runbooks_go_where_the_users_values_say(push, grafana, tmp_path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("links: {runbooks: https://git.example/mine}")
    push("--apply", "--values", str(own))
    variables = there(grafana)["dashboard"]["templating"]["list"]
    assert [each["query"] for each in variables if each["name"] == "runbooks"] == [
        "https://git.example/mine"
    ]


def test_a_wrong_token_is_told_as_grafana_tells_it(push, monkeypatch) -> None:
    monkeypatch.setenv("GRAFANA_TOKEN", "old")
    with pytest.raises(DashboardsError, match="refused: Unauthorized"):
        push()


def test_without_a_token_nothing_is_asked(push, monkeypatch) -> None:
    monkeypatch.delenv("GRAFANA_TOKEN")
    with pytest.raises(DashboardsError, match="GRAFANA_TOKEN is not set"):
        push()


@pytest.mark.parametrize("url", ["grafana.example", "ftp://grafana.example", "http://"])
def test_an_address_that_is_none_is_named(push, url) -> None:
    with pytest.raises(DashboardsError, match=f"^{url} is no address of a Grafana"):
        push("--url", url)


def test_a_grafana_that_is_away_is_named(push) -> None:
    with pytest.raises(DashboardsError, match=r"http://127\.0\.0\.1:1 cannot be reached"):
        push("--url", "http://127.0.0.1:1")
