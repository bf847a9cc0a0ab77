"""What docs/troubleshooting.md says a log has is what our code writes there."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from moriio_observed.config import CONFIG_PATH

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "troubleshooting.md").read_text()
AT_START = TEXT.split("\n## ")[1]
ELSEWHERES = {"No module named 'moriio_observed'", "Address already in use"}
"""What others write."""
LATER = (
    "barrier 'auto', so waits stand …",
    "is not one that moriio_observed knows",
    "steps back until the engine restarts",
    "waits: it needs … blocks",
    "OTLP … do not go out",
)
VARYING = re.compile(rf"'[^']*'|…|{re.escape(CONFIG_PATH)}")


def said_at_start() -> list[str]:
    cells = re.findall(r"^\| (?:… )?`([^|]+?)`(?: and [^|]+)? \|", AT_START, re.MULTILINE)
    return [cell for cell in cells if cell not in ELSEWHERES]


@functools.cache
def texts() -> tuple[str, ...]:
    """Every text of our code, with nothing where a value would stand."""
    return tuple(
        text
        for path in sorted((ROOT / "moriio_observed").rglob("*.py"))
        # The doctor recognises what others write: it writes none of it.
        if "doctor" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        for text in _text(node)
    )


def _text(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    if isinstance(node, ast.JoinedStr):
        parts = (part.value for part in node.values if isinstance(part, ast.Constant))
        yield "".join(map(str, parts))


def is_written(said: str) -> bool:
    """Whether one text of ours has all of it that does not vary, in its order."""
    pattern = ".*".join(map(re.escape, map(str.strip, VARYING.split(said))))
    return any(re.search(pattern, text, re.DOTALL) for text in texts())


def test_what_stops_a_start_is_listed() -> None:
    assert len(said_at_start()) == 5
    assert all(f"`{said}`" in AT_START for said in ELSEWHERES)


@pytest.mark.parametrize("said", [*said_at_start(), *LATER])
def test_what_a_log_is_said_to_have_is_what_we_write(said: str) -> None:
    assert said in TEXT
    assert is_written(said)


def test_what_nobody_writes_is_noticed() -> None:
    assert not is_written("bad moriio_observed settings, 'barrier'")
