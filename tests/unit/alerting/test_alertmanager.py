"""The example for Alertmanager: who gets what, what is quiet beside what, and what it says."""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from moriio_observed.alerting.conventions import CLOSED
from moriio_observed.alerting.folder import Folder
from moriio_observed.alerting.rules import alerts_of, render_groups
from tests.tools import needs

FOLDER = Folder(Path(__file__).parents[3] / "alerts")
HOME = FOLDER.path / "alertmanager"
CONFIG = HOME / "alertmanager.yml"
VALUES = FOLDER.values()
ALERTS = list(alerts_of(render_groups(FOLDER.sources(), VALUES)))
RECEIVERS = {"page": "pager", "ticket": "tickets"}

RANK_SLOW = {
    "status": "firing",
    "labels": {
        "alertname": "MoriioRankSlow",
        "severity": "ticket",
        "job": "decode",
        "instance": "d1:8000",
        "model_name": "org/model",
        "engine": "0",
        "tp_rank": "3",
    },
    "annotations": {
        "summary": "Rank 3 is slow",
        "description": "It waits.",
        "runbook_url": "https://runbooks.example/MoriioRankSlow.md",
        "dashboard_url": "https://grafana.example/d/moriio-read-barrier",
    },
    "startsAt": "2026-09-21T14:13:20Z",
}


def config() -> dict[str, Any]:
    return yaml.safe_load(CONFIG.read_text())


def amtool(*words: str | Path) -> str:
    done = subprocess.run(["amtool", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rendered(
    tmp_path: Path, template: str, *alerts: Mapping[str, Any], status: str | None = None
) -> str:
    data = tmp_path / "data.json"
    data.write_text(json.dumps({"status": status or alerts[0]["status"], "alerts": alerts}))
    text = f'{{{{ template "{template}" . }}}}'
    return amtool(
        "template",
        "render",
        f"--template.glob={HOME / 'moriio.tmpl'}",
        f"--template.text={text}",
        f"--template.data={data}",
    ).strip()


def with_labels(**labels: str) -> dict[str, Any]:
    return {**RANK_SLOW, "labels": {**RANK_SLOW["labels"], **labels}}


def told_labels() -> Iterator[tuple[str, str]]:
    """The labels by which alerts say why, where or who, each with an alert that has it."""
    named = re.compile(r"\$labels\.(\w+)")
    known = {"severity", *CLOSED}
    for alert in ALERTS:
        for label in named.findall(json.dumps(alert["annotations"])):
            if label not in known:
                known.add(label)
                yield label, alert["alert"]


@needs("amtool")
def test_amtool_takes_the_example_with_its_template() -> None:
    said = amtool("check-config", CONFIG)
    assert "SUCCESS" in said
    assert "moriio.tmpl" in said or "1 template" in said


@needs("amtool")
@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_goes_where_its_severity_says(alert) -> None:
    labels = {"alertname": alert["alert"], "job": "decode", "model_name": "m", **alert["labels"]}
    amtool(
        "config",
        "routes",
        "test",
        f"--config.file={CONFIG}",
        f"--verify.receivers={RECEIVERS[alert['labels']['severity']]}",
        *(f"{name}={value}" for name, value in labels.items()),
    )


def test_what_shares_a_fleet_and_an_incident_is_told_together() -> None:
    shared = [*str(VALUES["labels"]["fleet"]).replace(" ", "").split(","), "incident"]
    assert config()["route"]["group_by"] == shared
    assert [rule["equal"] for rule in config()["inhibit_rules"]] == [shared, shared]


def test_wrong_answers_to_the_canary_are_kept_quiet_by_nothing() -> None:
    [failing] = [alert for alert in ALERTS if alert["alert"] == "MoriioCanaryFailing"]
    matcher = re.compile(r'(\w+)=~?"(.+)"')
    targets = [rule["target_matchers"] for rule in config()["inhibit_rules"]]
    wanted = [dict(matcher.fullmatch(one).groups() for one in matchers) for matchers in targets]
    assert wanted
    for matchers in wanted:
        assert not all(
            re.fullmatch(value, failing["labels"][label]) for label, value in matchers.items()
        )


def test_a_symptom_is_there_before_its_causes_are_told() -> None:
    evaluated_every_s = 15
    waits = re.findall(r"group_wait: (\d+)(s|m)", CONFIG.read_text())
    assert waits
    assert all(int(number) * {"s": 1, "m": 60}[unit] > evaluated_every_s for number, unit in waits)


def test_every_receiver_tells_the_title_the_text_and_the_runbook() -> None:
    for receiver in config()["receivers"]:
        for template in ("title", "text", "runbook"):
            assert f'template "moriio.{template}"' in json.dumps(receiver).replace("\\", "")


@needs("amtool")
def test_a_notification_says_where_why_and_what_to_do(tmp_path) -> None:
    assert rendered(tmp_path, "moriio.text", with_labels(cause="full_graph")).splitlines() == [
        "MoriioRankSlow (ticket, firing) since 2026-09-21 14:13:20 UTC",
        "Where: org/model in decode, d1:8000, engine 0, rank 3",
        "Cause: full_graph",
        "What: It waits.",
        "Runbook: https://runbooks.example/MoriioRankSlow.md",
        "Dashboard: https://grafana.example/d/moriio-read-barrier",
    ]


@needs("amtool")
@pytest.mark.parametrize(("label", "alert"), list(told_labels()))
def test_whatever_label_tells_where_or_why_is_in_the_text(tmp_path, label, alert) -> None:
    value = f"the-{label}"
    assert value in rendered(tmp_path, "moriio.text", with_labels(**{label: value})), alert


@needs("amtool")
def test_a_canarys_notification_says_what_is_probed_and_what_came_back(tmp_path) -> None:
    canary = with_labels(target="router:8000", result="swapped", concurrency="16")
    text = rendered(tmp_path, "moriio.text", canary)
    assert ", probed at router:8000, 16 at once\n" in text
    assert "Cause: swapped\n" in text


@needs("amtool")
def test_an_alert_without_a_label_for_why_points_to_its_runbook(tmp_path) -> None:
    assert "Cause: see the runbook\n" in rendered(tmp_path, "moriio.text", RANK_SLOW)


@needs("amtool")
def test_a_title_tells_how_many_and_what_the_first_is(tmp_path) -> None:
    title = rendered(tmp_path, "moriio.title", RANK_SLOW, with_labels(instance="d2:8000"))
    assert title == "[FIRING 2] MoriioRankSlow: Rank 3 is slow"


@needs("amtool")
@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("title", "[FIRING 1] MoriioReadsStuck: Rank 3 is slow"),
        ("runbook", "https://runbooks.example/MoriioReadsStuck.md"),
        ("dashboard", "https://grafana.example/d/moriio-reads-and-transport"),
    ],
)
def test_the_headline_is_of_what_still_fires(tmp_path, template, says) -> None:
    over = {**RANK_SLOW, "status": "resolved"}
    fires = with_labels(alertname="MoriioReadsStuck") | {
        "annotations": {
            "summary": "Rank 3 is slow",
            "runbook_url": "https://runbooks.example/MoriioReadsStuck.md",
            "dashboard_url": "https://grafana.example/d/moriio-reads-and-transport",
        }
    }
    data = rendered(tmp_path, f"moriio.{template}", over, fires, status="firing")
    assert data == says


@needs("amtool")
def test_the_title_of_what_is_over_says_so(tmp_path) -> None:
    over = {**RANK_SLOW, "status": "resolved"}
    assert rendered(tmp_path, "moriio.title", over).startswith("[RESOLVED] MoriioRankSlow")
