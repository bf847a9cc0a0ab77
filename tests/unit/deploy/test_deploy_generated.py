"""scripts/deploy.py: what of deploy/ is written is what the rules and dashboards say."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from moriio_observed.alerting.folder import Folder
from moriio_observed.alerting.rules import render_groups
from tests.unit.deploy.manifests import DEPLOY, KUBERNETES, ROOT

MIMIRS_RULES_OF_A_GROUP = 20
CONFIG_MAP_BYTES = 1024 * 1024


def script(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts" / "deploy.py", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def copy_of_deploy(folder: Path) -> Path:
    return Path(shutil.copytree(DEPLOY, folder / "deploy"))


def test_what_is_committed_is_what_the_script_writes() -> None:
    check = script("--check")
    assert check.returncode == 0, check.stderr


def test_a_file_that_was_changed_by_hand_is_told(tmp_path: Path) -> None:
    copy = copy_of_deploy(tmp_path)
    rules = copy / "kubernetes" / "rules.yaml"
    rules.write_text(rules.read_text().replace("severity: page", "severity: ticket", 1))
    check = script("--check", "--out", copy)
    assert check.returncode == 1
    assert check.stderr == f"{rules} is stale: run python scripts/deploy.py\n"


def test_a_dashboard_that_is_no_more_is_told(tmp_path: Path) -> None:
    copy = copy_of_deploy(tmp_path)
    old = copy / "kubernetes" / "dashboards" / "old.yaml"
    old.touch()
    check = script("--check", "--out", copy)
    assert check.returncode == 1
    assert check.stderr == f"{old} is not written any more\n"


def test_somebodys_values_are_in_their_rules_and_their_dashboards(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text(
        'selectors: {engines: namespace="prod"}\nlinks: {runbooks: https://wiki.example/moriio}\n'
    )
    done = script("--values", own, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    rules = (tmp_path / "kubernetes" / "rules.yaml").read_text()
    assert 'moriio_requests_total{namespace="prod"}' in rules
    assert "https://wiki.example/moriio/MoriioPhantomHits.md" in rules
    dashboard = (tmp_path / "kubernetes" / "dashboards" / "salad-watch.yaml").read_text()
    assert "https://wiki.example/moriio" in dashboard


def test_values_that_cannot_be_used_are_told_in_a_line(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("thresholds: {barrier_wait: 1}\n")
    done = script("--values", own, "--out", tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "thresholds.barrier_wait (1) is no value" in done.stderr


def test_the_operator_and_the_bare_prometheus_are_given_the_shipped_rules() -> None:
    folder = Folder(ROOT / "alerts")
    groups = render_groups(folder.sources(), folder.values())
    operators = yaml.safe_load((KUBERNETES / "rules.yaml").read_text())
    bare = yaml.safe_load((DEPLOY / "prometheus" / "moriio.rules.yaml").read_text())
    assert groups
    assert operators["spec"]["groups"] == bare["groups"] == groups


def test_no_group_has_more_rules_than_mimir_allows_by_default() -> None:
    groups = yaml.safe_load((DEPLOY / "prometheus" / "moriio.rules.yaml").read_text())["groups"]
    assert max(len(group["rules"]) for group in groups) <= MIMIRS_RULES_OF_A_GROUP


def test_every_dashboard_is_in_a_config_map_that_the_sidecar_finds_and_the_api_takes() -> None:
    shipped = {path.name: json.loads(path.read_text()) for path in ROOT.glob("dashboards/json/*")}
    found = {}
    for path in (KUBERNETES / "dashboards").iterdir():
        config_map = yaml.safe_load(path.read_text())
        assert config_map["metadata"]["labels"] == {"grafana_dashboard": "1"}
        assert path.stat().st_size < CONFIG_MAP_BYTES
        [(name, text)] = config_map["data"].items()
        found[name] = json.loads(text)
    assert len(found) == 4
    assert found == shipped
