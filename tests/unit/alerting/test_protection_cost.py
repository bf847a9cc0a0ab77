"""The page that helps to choose a barrier asks only for what can be answered."""

import re
from pathlib import Path

from moriio_observed.alerting.folder import Folder
from moriio_observed.alerting.queries import Queries
from moriio_observed.alerting.rules import render_groups, rules_of

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "protection-cost.md"
FOLDER = Folder(ROOT / "alerts")


def test_every_query_asks_for_what_is_exposed() -> None:
    groups = render_groups(FOLDER.sources(), FOLDER.values())
    recorded = {rule["record"]: rule["expr"] for rule in rules_of(groups) if "record" in rule}
    checked = Queries(frozenset({"job", "instance"}), recorded)
    blocks = re.findall(r"```promql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    asked = [line for block in blocks for line in block.splitlines() if not line.startswith("#")]
    assert len(asked) > len(blocks) > 1
    for query in asked:
        checked.labels(query)
    assert checked.problems == []


def test_it_links_only_to_what_is_there() -> None:
    targets = re.findall(r"\]\(([^):#]+)[)#]", PAGE.read_text())
    assert targets
    assert [target for target in targets if not (PAGE.parent / target).exists()] == []
