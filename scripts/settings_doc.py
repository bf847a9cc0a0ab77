"""Write the tables of docs/settings.md, or with --check say whether they are stale."""

from __future__ import annotations

import inspect
import json
import re
import sys
from dataclasses import fields, is_dataclass
from typing import Any

from generated import DOCS, table, with_part, write

from moriio_observed.config import Settings, variable

PAGE = DOCS / "settings.md"
ATTRIBUTE = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
"""One line of a docstring's section "Attributes", with those that go on with it."""
NOT_SET = "not set"
HEAD = ("key, and variable", "default", "allowed", "meaning")


def tables(owner: type[Any] = Settings, prefix: str = "") -> str:
    """A table of the settings of `owner`, then one of each group in it."""
    meanings = dict(ATTRIBUTE.findall(inspect.getdoc(owner) or ""))
    rows, groups = [], []
    for item in fields(owner):
        path = f"{prefix}{item.name}"
        if is_dataclass(item.default_factory):
            summary, _, _ = (inspect.getdoc(item.default_factory) or "").partition("\n")
            groups.append(f"\n`{path}`: {summary}\n\n{tables(item.default_factory, f'{path}.')}")
        elif rule := item.metadata.get("rule"):
            meaning = " ".join(meanings[item.name].split()).replace("None:", f"{NOT_SET}:")
            key = f"`{path}`<br>`{variable(path)}`"
            rows.append((key, _shown(item.default), rule.allowed, meaning))
    return table(HEAD, rows) + "".join(groups)


def _shown(default: object) -> str:
    match default:
        case None:
            return NOT_SET
        case (first, *_, last):
            return f"{len(default)} bounds from {_plain(first)} to {_plain(last)}"
        case float():
            return f"`{_plain(default)}`"
        case _:
            return f"`{json.dumps(default)}`"


def _plain(number: float) -> str:
    return f"{number:f}".rstrip("0").rstrip(".")


if __name__ == "__main__":
    sys.exit(write(PAGE, with_part(PAGE, "settings", tables())))
