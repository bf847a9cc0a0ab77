"""`moriio-observed dashboards build` and `check`, on a user's own copy."""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from moriio_observed.cli import dashboards
from moriio_observed.dashboarding.errors import DashboardsError

ROOT = Path(__file__).parents[3]


@pytest.fixture
def copy(tmp_path) -> Path:
    """A user's own copy of our dashboards, with our rules."""
    return Path(shutil.copytree(ROOT / "dashboards", tmp_path / "dashboards"))


def run(action: str, folder: Path, *words: str | Path) -> int:
    parser = argparse.ArgumentParser()
    dashboards.add_arguments(parser)
    places = [action, "--dir", folder, "--alerts", ROOT / "alerts"]
    return dashboards.run(parser.parse_args([str(word) for word in (*places, *words)]))


def change(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_build_writes_what_is_committed(copy, capsys) -> None:
    committed = {path.name: path.read_text() for path in (copy / "json").glob("*.json")}
    shutil.rmtree(copy / "json")
    assert run("build", copy) == 0
    assert {path.name: path.read_text() for path in (copy / "json").glob("*.json")} == committed
    assert str(copy / "json" / "fleet.json") in capsys.readouterr().out


def test_a_build_takes_the_users_thresholds_and_links(copy, tmp_path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text(
        "links: {runbooks: https://git.example/mine}\nthresholds: {barrier_wait_share: 0.125}"
    )
    run("build", copy, "--values", own, "--out", tmp_path / "out")
    built = (tmp_path / "out" / "read-barrier.json").read_text()
    assert "https://git.example/mine" in built
    assert '"value": 0.125' in built


def test_what_is_shipped_is_well(copy, capsys) -> None:
    assert run("check", copy) == 0
    assert capsys.readouterr().out == "4 dashboards keep every rule\n"


def test_a_folder_of_dashboards_alone_can_be_checked(copy, capsys) -> None:
    assert run("check", copy / "json") == 0
    assert "4 dashboards" in capsys.readouterr().out


def test_a_check_names_the_file_and_what_is_wrong_in_it(copy, capsys) -> None:
    change(copy / "json" / "fleet.json", editable=True)
    assert run("check", copy, "--no-drift") == 1
    assert capsys.readouterr().err == (
        "fleet.json: editable: what is changed in the browser is lost with the next push\n"
    )


def test_a_check_tells_that_a_source_was_changed_and_not_built(copy, capsys) -> None:
    source = copy / "sources" / "fleet.yaml"
    source.write_text(source.read_text().replace("MoRIIO / Fleet", "Mine"))
    assert run("check", copy) == 1
    assert capsys.readouterr().err == (
        "fleet.json: differs from its source: moriio-observed dashboards build\n"
    )


def test_a_check_without_drift_needs_no_builder(copy, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "grafana_dashboards.components.projects", None)
    with pytest.raises(DashboardsError, match="--no-drift"):
        run("check", copy)
    assert run("check", copy, "--no-drift") == 0


def test_two_dashboards_with_one_uid_are_told(copy, capsys) -> None:
    shutil.copy(copy / "json" / "fleet.json", copy / "json" / "mine.json")
    assert run("check", copy, "--no-drift") == 1
    assert capsys.readouterr().err == "mine.json: has the uid of fleet.json\n"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"panels": ' + "1" * 5000, "cannot be read"),
        ("[]", "no list of panels"),
        ("{}", "no list of panels"),
        ('{"panels": 7}', "panels is a list, not 7"),
        ('{"panels": [7]}', r"panels\[0\] is a mapping, not 7"),
        ('{"panels": [{"targets": [{"expr": 1}]}]}', r"targets\[0\]\.expr is a text, not 1"),
        ('{"panels": [{"panels": [{"type": 1}]}]}', r"panels\[0\]\.panels\[0\]\.type is a text"),
        ('{"panels": [{"gridPos": {"h": 1000000000}}]}', r"gridPos\.h is a whole number"),
        ('{"panels": [], "annotations": {"list": [2.5]}}', r"annotations\.list\[0\] is a mapping"),
        ('{"panels": [], "templating": {"list": [{"name": "a"}]}}', "a name and a type"),
        ('{"panels": [], "templating": []}', "templating is a mapping"),
    ],
)
def test_a_file_that_is_no_dashboard_is_named(copy, text, told) -> None:
    (copy / "json" / "mine.json").write_text(text)
    with pytest.raises(DashboardsError, match=rf"mine\.json .*{told}"):
        run("check", copy)


def test_a_folder_without_dashboards_is_named(tmp_path) -> None:
    with pytest.raises(DashboardsError, match="has no dashboards: name the folder with --dir"):
        run("check", tmp_path)


@pytest.mark.parametrize(
    ("action", "library"), [("check", "promql_parser"), ("push", "grafana_client")]
)
def test_without_the_extra_its_name_is_told(action, library) -> None:
    without = (
        f"import sys; sys.modules['{library}'] = None;"
        "from moriio_observed.cli import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", without, "dashboards", action],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"{library} is not installed; it comes with the extra dashboards" in done.stderr
