"""Pages that are written from the code say what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS
from moriio_observed.accept.claims import CLAIMS
from moriio_observed.alerting.folder import Folder
from moriio_observed.alerting.rules import alerts_of, render_groups
from moriio_observed.canary import metrics as canary
from moriio_observed.cli import COMMANDS
from moriio_observed.config import KEYS, variable
from moriio_observed.telemetry.catalog import CATALOG, PREFIX
from scripts.generated import table, with_part, write

ROOT = Path(__file__).parents[3]
SCRIPTS = sorted(path.name for path in (ROOT / "scripts").glob("*_doc.py"))


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_page_is_stale(script: str) -> None:
    check = subprocess.run(
        [sys.executable, f"scripts/{script}", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stdout + check.stderr


def test_every_setting_has_its_row() -> None:
    rows = [line for line in page("settings.md").splitlines() if line.startswith("| `")]
    for key in KEYS:
        assert any(row.startswith(f"| `{key}`<br>`{variable(key)}` |") for row in rows), key


def test_every_metric_has_its_row() -> None:
    text = page("metrics.md")
    assert [name for name in CATALOG if f"\n| `{PREFIX}{name}` |" not in text] == []


def test_every_metric_of_the_canary_has_its_row_with_its_labels() -> None:
    rows = dict(
        re.findall(r"^\| `(moriio_canary_\w+)` \|([^|]*)\|", page("canary.md"), re.MULTILINE)
    )
    assert {name: re.findall(r"`(\w+)`", labels) for name, labels in rows.items()} == {
        f"{canary.PREFIX}{name}": list(instrument.labels)
        for name, instrument in canary.CATALOG.items()
    }


def test_every_alert_has_its_row_under_its_severity() -> None:
    folder = Folder(ROOT / "alerts")
    _, pages, tickets = page("alerts.md").split("\n## ")
    listed = {"page": pages, "ticket": tickets}
    for rule in alerts_of(render_groups(folder.sources(), folder.values())):
        row = f"\n| [{rule['alert']}](../alerts/runbooks/{rule['alert']}.md) |"
        assert row in listed[rule["labels"]["severity"]]


def test_every_claim_has_its_row_and_says_whether_it_needs_hardware() -> None:
    text = page("accept.md")
    for claim in CLAIMS:
        assert f"\n| `{claim.name}` | {'yes ' if claim.needs_hardware else ''}|" in text, claim.name


def test_every_benchmark_says_how_it_measures() -> None:
    text = (ROOT / "benchmarks" / "performance.in.md").read_text()
    assert [name for name in BENCHMARKS if f"`benchmarks/{name}.py`" not in text] == []


def test_every_command_has_its_row() -> None:
    text = page("commands.md")
    for command in COMMANDS:
        assert f"| {command.SUMMARY} |" in text
        assert f"\n| [`moriio-observed {command.NAME}`](" in text


def test_a_stale_page_is_told_and_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = tmp_path / "page.md"
    stale.write_text("old")
    monkeypatch.setattr(sys, "argv", ["page_doc.py", "--check"])
    assert write(stale, "new") == 1
    assert stale.read_text() == "old"
    assert capsys.readouterr().err == f"{stale} is stale: run python page_doc.py\n"
    assert write(stale, "old") == 0


def test_a_page_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["page_doc.py"])
    assert write(tmp_path / "page.md", "new") == 0
    assert (tmp_path / "page.md").read_text() == "new"


def test_a_part_takes_the_place_of_the_one_before_and_leaves_the_rest(tmp_path: Path) -> None:
    whole = tmp_path / "page.md"
    whole.write_text("a\n<!-- x: begin (why) -->\nold\n<!-- x: end -->\nb\n")
    once = with_part(whole, "x", table(["h"], [["new"]]))
    assert once == ("a\n<!-- x: begin (why) -->\n\n| h |\n| --- |\n| new |\n\n<!-- x: end -->\nb\n")
    whole.write_text(once)
    assert with_part(whole, "x", table(["h"], [["new"]])) == once


def test_a_page_without_the_part_is_an_error(tmp_path: Path) -> None:
    whole = tmp_path / "page.md"
    whole.write_text("a\n")
    with pytest.raises(ValueError, match="no part 'x'"):
        with_part(whole, "x", "")
