"""What whoever is woken opens first."""

import re
from pathlib import Path

import pytest

from moriio_observed.alerting.folder import Folder
from moriio_observed.alerting.queries import Queries
from moriio_observed.alerting.rules import alerts_of, render_groups, rules_of

FOLDER = Folder(Path(__file__).parents[3] / "alerts")
RUNBOOKS = {path.stem: path for path in (FOLDER.path / "runbooks").glob("*.md")}
SECTIONS = ["Meaning", "Impact", "Diagnosis", "Mitigation", "Example"]
GROUPS = render_groups(FOLDER.sources(), FOLDER.values())


def queries(text: str) -> list[str]:
    blocks = re.findall(r"```promql\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert set(RUNBOOKS) == {rule["alert"] for rule in alerts_of(GROUPS)}


@pytest.mark.parametrize("name", sorted(RUNBOOKS))
def test_a_runbook_has_its_sections_in_order(name) -> None:
    text = RUNBOOKS[name].read_text()
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS


@pytest.mark.parametrize("name", sorted(RUNBOOKS))
def test_a_runbooks_queries_ask_for_what_is_exposed(name) -> None:
    recorded = {rule["record"]: rule["expr"] for rule in rules_of(GROUPS) if "record" in rule}
    checked = Queries(frozenset({"job", "instance"}), recorded)
    asked = queries(RUNBOOKS[name].read_text())
    assert asked
    for query in asked:
        checked.labels(query)
    assert checked.problems == []


@pytest.mark.parametrize("name", sorted(RUNBOOKS))
def test_a_runbook_links_only_to_what_is_there(name) -> None:
    text = RUNBOOKS[name].read_text()
    for target in re.findall(r"\]\(([^):]+)\)", text):
        assert (RUNBOOKS[name].parent / target).exists(), target
