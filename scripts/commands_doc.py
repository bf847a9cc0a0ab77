"""Write the table of docs/commands.md, or with --check say whether it is stale."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from generated import DOCS, table, with_part, write

from moriio_observed.cli import COMMANDS

PAGE = DOCS / "commands.md"
ELSEWHERE = {
    "alerts": "../alerts/README.md",
    "dashboards": "../dashboards/README.md",
    "demo": "quickstart.md",
}
"""Where the page of a command is, if it is not called like the command."""


def commands() -> Iterator[tuple[str, ...]]:
    """A row for every command: its name, what it does, and its page.

    Raises:
        ValueError: A command has no page.
    """
    for command in COMMANDS:
        page = ELSEWHERE.get(command.NAME, f"{command.NAME}.md")
        if not (DOCS / page).exists():
            raise ValueError(
                f"moriio-observed {command.NAME} has no page: docs/{page} is not there"
            )
        yield f"[`moriio-observed {command.NAME}`]({page})", command.SUMMARY


if __name__ == "__main__":
    text = with_part(PAGE, "commands", table(("command", "what it does"), commands()))
    sys.exit(write(PAGE, text))
