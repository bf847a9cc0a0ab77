"""JSON that a person has typed: where it is wrong, pointed at."""

from __future__ import annotations

import json
from typing import Any

from moriio_observed.config import shown
from moriio_observed.doctor.errors import InputError

_BEFORE, _AFTER = 40, 30
"""So many characters are shown around a mistake."""


def parse_object(text: str, name: str) -> dict[str, Any]:
    """Read a JSON object.

    Args:
        text: The JSON.
        name: What it is, for the error.

    Raises:
        InputError: It is not JSON, or not an object; with the place of the mistake under a caret.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(_pointed_at(text, name, error)) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f'{name} = {shown(value)}: must be a JSON object, such as {{"key": …}}')
    return value


def _pointed_at(text: str, name: str, error: json.JSONDecodeError) -> str:
    line = (text.splitlines() or [""])[min(error.lineno, len(text.splitlines()) or 1) - 1]
    column = error.colno - 1
    begin = max(0, column - _BEFORE)
    excerpt = line[begin : column + _AFTER]
    shown_line = "".join(letter if letter.isprintable() else " " for letter in excerpt)
    caret = " " * (column - begin) + "^"
    return (
        f"{name} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}:\n"
        f"  {shown_line}\n  {caret}{_hint(text, error)}"
    )


def _hint(text: str, error: json.JSONDecodeError) -> str:
    at = text[error.pos : error.pos + 5]
    if at.startswith(("'", "\N{LEFT DOUBLE QUOTATION MARK}", "\N{LEFT SINGLE QUOTATION MARK}")):
        return " JSON wants straight double quotes"
    if at.startswith("$"):
        return " a variable of the shell: give what it stands for"
    if at.startswith(("True", "False", "None")):
        return " JSON writes true, false and null"
    before, rest = text[: error.pos].rstrip(), text[error.pos :]
    # Python points behind the comma, from 3.13 on at it.
    if (before.endswith(",") or rest.startswith(",")) and rest.lstrip(", \t\r\n")[:1] in ("}", "]"):
        return " no comma before the end"
    if not text.strip():
        return " there is nothing"
    return ""
