"""The rows as a table, as JSON, and what they fail to prove."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from moriio_observed.demo.report import aligned
from tests.faults.modes import BARE, GUARDS, REPORT
from tests.faults.verdict import Row

JSON_KEYS = (
    "fault",
    "vllm",
    "mode",
    "requests",
    "right",
    "error",
    "wrong_200",
    "exposed",
    "wrong_flagged",
    "right_flagged",
)
HEADINGS = (
    *("WRONG WITH 200" if key == "wrong_200" else key for key in JSON_KEYS),
    "precision certain",
    "possible",
)
WORDS = 3
"""How many of the first columns are words, to be aligned at their left."""

HEALTHY = "healthy"
"""The control: nothing is harmed, so nothing may be wrong or flagged."""


def table(rows: Sequence[Row]) -> str:
    """The rows as an aligned table, sorted by version and fault in the order they first ran.

    The modes of a fault stand below each other, whatever the order in which they ran.
    """
    order = {key: place for place, key in enumerate(dict.fromkeys(map(_fault_of, rows)))}
    together = sorted(rows, key=lambda row: order[_fault_of(row)])
    return aligned([HEADINGS, *map(_cells, together)], words=WORDS)


def sentence(row: Row) -> str:
    """A row as it comes, in one line."""
    parts = [f"{row.right} of {row.requests} right"]
    if row.error:
        parts.append(f"{row.error} errors")
    if row.wrong_200:
        parts.append(f"{row.wrong_200} WRONG WITH 200")
    if row.exposed:
        parts.append(f"{row.exposed} flagged")
    if row.unflagged and row.mode != BARE:
        parts.append(f"{len(row.unflagged)} wrong NOT flagged")
    return f"{row.vllm} {row.mode:9}  {row.fault}: {', '.join(parts)}"


def problems(rows: Sequence[Row]) -> list[str]:
    """What the rows show that must not be, or fail to show; empty when all is as promised."""
    found = []
    for row in rows:
        where = f"{row.fault}, vLLM {row.vllm}, {row.mode}"
        if row.mode in GUARDS and row.wrong_200:
            found.append(f"{where}: {row.wrong_200} wrong answers left with HTTP 200")
        if row.mode == REPORT and row.unflagged:
            # The end of an id is what to search logs for.
            named = ", ".join(request_id.rpartition("_")[2] for request_id in row.unflagged)
            found.append(f"{where}: {len(row.unflagged)} wrong answers nobody flagged: {named}")
        if row.fault == HEALTHY and (row.right < row.requests or row.exposed):
            found.append(f"{where}: nothing was harmed, yet {sentence(row)}")
    bare = [row for row in rows if row.mode == BARE]
    if bare and not any(row.wrong_200 for row in bare):
        found.append("bare upstream gave no wrong answer: the table proves nothing")
    return found


def write_json(rows: Sequence[Row], path: Path) -> None:
    """Write the rows as a list of objects with the keys `JSON_KEYS`."""
    objects = [{key: getattr(row, key) for key in JSON_KEYS} for row in rows]
    path.write_text(json.dumps(objects, indent=2) + "\n")


def _fault_of(row: Row) -> tuple[str, str]:
    return row.vllm, row.fault


def _cells(row: Row) -> tuple[str, ...]:
    numbers = (str(getattr(row, key)) for key in JSON_KEYS[WORDS:])
    # A guard makes what it flags right, or an error: nothing there is left to be precise about.
    precision = row.precision if row.mode == REPORT else (None, None)
    return (row.fault, row.vllm, row.mode, *numbers, *map(_percent, precision))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
