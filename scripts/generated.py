"""What the scripts share that write pages, or a part of one, from the code."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, with a line's end after each row."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def with_part(page: Path, name: str, part: str) -> str:
    """A page's text with `part` between its comments ``<name>: begin`` and ``<name>: end``.

    Raises:
        ValueError: The page has no such comments.
    """
    before, begin, rest = page.read_text().partition(f"<!-- {name}: begin")
    _, end, after = rest.partition(f"<!-- {name}: end -->")
    if not end:
        raise ValueError(f"{page} has no part '{name}', or no end of it")
    remark, _, _ = rest.partition("\n")
    return f"{before}{begin}{remark}\n\n{part}\n{end}{after}"


def write(page: Path, text: str) -> int:
    """Write a page, or with ``--check`` among the arguments only say whether it is stale.

    Returns:
        The exit code: 1 for a stale page.
    """
    if sys.argv[1:] != ["--check"]:
        page.write_text(text)
        return 0
    stale = not page.exists() or page.read_text() != text
    if stale:
        print(f"{page} is stale: run python {sys.argv[0]}", file=sys.stderr)
    return int(stale)
