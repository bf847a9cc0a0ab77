"""The fault table in docs/guard.md, from a run's rows: ``python -m tests.faults.page``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.faults.modes import MODES, ROOT

PAGE = ROOT / "docs" / "guard.md"
ROWS = ROOT / "build" / "faults.json"
BEGINS, ENDS = "<!-- faults: begin", "<!-- faults: end"

Cells = Mapping[tuple[str, str, str], Mapping[str, Any]]


def with_table(text: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """The page with its table made anew.

    Args:
        text: The page.
        rows: What `table.write_json` has written.
    """
    cells = {(row["vllm"], row["fault"], row["mode"]): row for row in rows}
    faults = dict.fromkeys((row["vllm"], row["fault"]) for row in rows)
    lines = [
        f"| vLLM | fault | {' | '.join(MODES)} |",
        f"| --- | --- |{' --- |' * len(MODES)}",
        *(
            f"| {vllm} | {fault} | "
            + " | ".join(_cell(cells, vllm, fault, mode) for mode in MODES)
            + " |"
            for vllm, fault in faults
        ),
    ]
    before, begins, rest = text.partition(BEGINS)
    comment, _, _ = rest.partition("\n")
    _, ends, after = rest.partition(ENDS)
    return "".join([before, begins, comment, "\n", *(f"{line}\n" for line in lines), ends, after])


def _cell(cells: Cells, vllm: str, fault: str, mode: str) -> str:
    row = cells.get((vllm, fault, mode))
    if row is None:
        return ""
    wrong = f"**{row['wrong_200']} wrong**" if row["wrong_200"] else ""
    told = f"{row['wrong_flagged']} of them told" if wrong and mode == "report" else ""
    error = f"{row['error']} errors" if row["error"] else ""
    return ", ".join(filter(None, (f"{row['right']} right", error, wrong, told)))


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(), json.loads(ROWS.read_text())))
