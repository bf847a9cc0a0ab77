"""Write the table of docs/settings.md from the settings, or with --check say whether it is stale."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from generated import DOCS, table, write, with_part

from moriio_observed.config import Settings, variable

PAGE = DOCS / "settings.md"
ATTRIBUTE = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
"""One line of a docstring's section "Attributes", with those that go on with it."""
NOT_SET = "not set"


def settings(owner: type[Any] = Settings, prefix: str = "") -> Iterator[tuple[str, ...]]:
    """A row for every setting: its key and variable, default, what is allowed, what it means."""
    meanings = dict(ATTRIBUTE.findall(inspect.getdoc(owner) or ""))
    for item in fields(owner):
        path = f"{prefix}{item.name}"
        if is_dataclass(item.default_factory):
            yield from settings(item.default_factory, f"{path}.")
        elif rule := item.metadata.get("rule"):
            meaning = " ".join(meanings[item.name].split()).replace("None:", f"{NOT_SET}:")
            yield f"`{path}`<br>`{variable(path)}`", _shown(item.default), rule.allowed, meaning


def _shown(default: object) -> str:
    if default is None:
        return NOT_SET
    if isinstance(default, tuple):
        return f"{len(default)} bounds from {default[0]:g} to {default[-1]:g}"
    return f"`{json.dumps(default)}`"


if __name__ == "__main__":
    head = ("key, and variable", "default", "allowed", "meaning")
    sys.exit(write(PAGE, with_part(PAGE, "settings", table(head, settings()))))
