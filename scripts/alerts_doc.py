"""Write docs/alerts.md from the rules and runbooks, or with --check say whether it is stale."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from generated import DOCS, ROOT, table, write

from moriio_observed.alerting.folder import Folder
from moriio_observed.alerting.rules import KEEP_FIRING_FOR, alerts_of, render_groups

FOLDER = Folder(ROOT / "alerts")
MEANING = re.compile(r"^## Meaning\n\n(.+?[.])(?=\s)", re.MULTILINE | re.DOTALL)
"""The first sentence of a runbook."""

HEAD = """\
# Every alert

Written by `scripts/alerts_doc.py` from `alerts/`; change it there. A name leads to its runbook.
Thresholds are those of [values.yaml](../alerts/values.yaml), which you can replace.
[The rules](../alerts/README.md) says what pages and why, and how incidents are grouped.
"""

SECTIONS = {
    "page": "\n## Pages\n\nGarbage is served, or will be in minutes.\n\n",
    "ticket": "\n## Tickets\n\nFor the working day.\n\n",
}


def page() -> str:
    """Return the page as the rules are now."""
    head = ("alert", "means", "incident", "kind", "fires after", "ends after")
    return HEAD + "".join(
        text + table(head, _rows(severity)) for severity, text in SECTIONS.items()
    )


def _rows(severity: str) -> Iterator[tuple[str, ...]]:
    for rule in alerts_of(render_groups(FOLDER.sources(), FOLDER.values())):
        name, labels = rule["alert"], rule["labels"]
        if labels["severity"] == severity:
            yield (
                f"[{name}](../alerts/runbooks/{name}.md)",
                _meaning(name),
                f"`{labels['incident']}`",
                f"`{labels['kind']}`",
                _time(rule.get("for")),
                _time(rule.get(KEEP_FIRING_FOR)),
            )


def _time(given: str | None) -> str:
    return "at once" if given in (None, "0m") else str(given)


def _meaning(alert: str) -> str:
    found = MEANING.search((FOLDER.path / "runbooks" / f"{alert}.md").read_text())
    if found is None:
        raise ValueError(f"the runbook of {alert} does not begin with what it means")
    return " ".join(found[1].split())


if __name__ == "__main__":
    sys.exit(write(DOCS / "alerts.md", page()))
