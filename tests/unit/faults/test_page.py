"""The fault table in the documents says what the rows say."""

from __future__ import annotations

from typing import Any

from tests.faults.modes import BARE, FAIL, RECOMPUTE, REPORT
from tests.faults.page import BEGINS, ENDS, PAGE, with_table


def row(mode: str, **more: Any) -> dict[str, Any]:
    empty = {"right": 0, "error": 0, "wrong_200": 0, "wrong_flagged": 0}
    return {"fault": "hung layer", "vllm": "0.32.0", "mode": mode} | empty | more


ROWS = [
    row(BARE, right=14, wrong_200=2),
    row(REPORT, right=14, wrong_200=2, wrong_flagged=2),
    row(RECOMPUTE, right=16),
    row(FAIL, right=14, error=2),
]


def test_each_fault_is_a_line_with_every_mode() -> None:
    page = with_table(f"before\n{BEGINS} (why) -->\nold\n{ENDS} -->\nafter\n", ROWS)
    assert page.splitlines() == [
        "before",
        f"{BEGINS} (why) -->",
        "| vLLM | fault | bare | report | recompute | fail |",
        "| --- | --- | --- | --- | --- | --- |",
        (
            "| 0.32.0 | hung layer | 14 right, **2 wrong** | 14 right, **2 wrong**, 2 of them told"
            " | 16 right | 14 right, 2 errors |"
        ),
        f"{ENDS} -->",
        "after",
    ]


def test_a_mode_that_was_not_played_is_empty() -> None:
    page = with_table(f"{BEGINS}\n{ENDS}", ROWS[:1])
    assert "| 0.32.0 | hung layer | 14 right, **2 wrong** |  |  |  |" in page


def test_the_page_has_a_place_for_the_table() -> None:
    text = PAGE.read_text()
    assert text.count(BEGINS) == text.count(ENDS) == 1
