"""The file of golden answers: read with one clear error, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from moriio_observed.canary.answers import Answer, number, token_ids
from moriio_observed.canary.errors import CanaryError
from moriio_observed.canary.metrics import Mode
from moriio_observed.config import shown

FORMAT = "moriio-observed canary golden answers"
VERSION = 1

Value = TypeVar("Value")


@dataclass(frozen=True)
class Known:
    """A prompt with its answer."""

    prompt: str
    answer: Answer


@dataclass(frozen=True)
class Golden:
    """Known answers of one model.

    Attributes:
        model: The name it is asked by.
        mode: Whether its answers are the same each time, or only free of degeneration.
        max_tokens: How many tokens each answer has.
        concurrencies: The numbers of prompts sent at once when they were recorded.
        recorded_at: When, in ISO 8601.
        source: What was asked.
        asked: How many prompts were tried.
        known: Those that were kept, no two with the same answer.
    """

    model: str
    mode: Mode
    max_tokens: int
    concurrencies: tuple[int, ...]
    recorded_at: str
    source: str
    asked: int
    known: tuple[Known, ...]


def write(golden: Golden, path: Path) -> None:
    """Write a file of golden answers.

    Raises:
        CanaryError: It cannot be written.
    """
    with _writing(path) as fresh:
        fresh.write_text(to_json(golden), encoding="utf-8")
        fresh.replace(path)


def check_place(path: Path) -> None:
    """See whether a file of golden answers can be written, before anything is recorded for it.

    Raises:
        CanaryError: It cannot.
    """
    with _writing(path) as fresh:
        fresh.touch()


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """What stands beside a file until it is whole; gone at the end."""
    fresh = path.parent / f"{path.name}.new"
    try:
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
        yield fresh
        fresh.unlink(missing_ok=True)
    except OSError as error:
        raise CanaryError(f"--golden {shown(str(path))} cannot be written: {error}") from None


def read(path: Path) -> Golden:
    """Read a file of golden answers.

    Raises:
        CanaryError: There is none, or it is not one.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CanaryError(
            f"there are no golden answers at {path}: write them with moriio-observed canary record"
        ) from None
    except (OSError, ValueError) as error:
        raise CanaryError(f"golden answers {path} cannot be read: {error}") from None
    try:
        return from_json(text)
    except CanaryError as error:
        raise CanaryError(f"golden answers {path}: {error}") from None


def to_json(golden: Golden) -> str:
    """The text of the file."""
    value = {
        "format": FORMAT,
        "version": VERSION,
        "model": golden.model,
        "mode": golden.mode,
        "max_tokens": golden.max_tokens,
        "concurrencies": golden.concurrencies,
        "recorded_at": golden.recorded_at,
        "source": golden.source,
        "asked": golden.asked,
        "prompts": [
            {
                "prompt": one.prompt,
                "text": one.answer.text,
                "tokens": one.answer.tokens,
                "first_logprob": one.answer.first_logprob,
            }
            for one in golden.known
        ],
    }
    return json.dumps(value, indent=1) + "\n"


def from_json(text: str) -> Golden:
    """Read the text of the file.

    Raises:
        CanaryError: It is not one; the message names the key, its value and the right form.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CanaryError(f"not JSON: {error}") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise CanaryError(f'not a file of golden answers: "format" must be {FORMAT!r}')
    if value.get("version") != VERSION:
        raise CanaryError(
            f'"version" is {shown(value.get("version"))}: this release reads {VERSION};'
            " record them anew"
        )
    golden = Golden(
        model=_get(value, "model", _text, "a name"),
        mode=Mode(_get(value, "mode", _mode, " or ".join(Mode))),
        max_tokens=_get(value, "max_tokens", _count, "a number above 0"),
        concurrencies=_get(value, "concurrencies", _counts, "a list of numbers above 0"),
        recorded_at=_get(value, "recorded_at", _text, "a time in ISO 8601"),
        source=_get(value, "source", _text, "an address"),
        asked=_get(value, "asked", _count, "a number above 0"),
        known=tuple(
            _known(item, f"prompts[{n}]")
            for n, item in enumerate(_get(value, "prompts", _list, "a list of at least one"))
        ),
    )
    if len({one.prompt for one in golden.known}) < len(golden.known):
        raise CanaryError('"prompts" has a prompt twice')
    return golden


def _known(item: Any, where: str) -> Known:
    if not isinstance(item, dict):
        raise CanaryError(f"{where} is {shown(item)}: must be an object with prompt and text")
    tokens, logprob = item.get("tokens"), item.get("first_logprob")
    if tokens is not None and not token_ids(tokens):
        raise CanaryError(f"{where}.tokens is {shown(tokens)}: must be a list of token ids or null")
    if logprob is not None and number(logprob) is None:
        raise CanaryError(f"{where}.first_logprob is {shown(logprob)}: must be a number or null")
    answer = Answer(
        text=_get(item, "text", _any_text, "a text", where),
        tokens=token_ids(tokens),
        first_logprob=number(logprob),
    )
    return Known(_get(item, "prompt", _text, "a text", where), answer)


def _get(
    value: Mapping[str, Any],
    key: str,
    valid: Callable[[Any], Value | None],
    form: str,
    where: str = "",
) -> Value:
    found = valid(value.get(key))
    if found is None:
        name = f"{where}.{key}" if where else f'"{key}"'
        has = f"is {shown(value[key])}" if key in value else "is missing"
        raise CanaryError(f"{name} {has}: must be {form}")
    return found


def _any_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value and is_sendable(value) else None


def is_sendable(text: str) -> bool:
    """Whether a text can be written in UTF-8, which half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _mode(value: Any) -> str | None:
    return value if isinstance(value, str) and value in tuple(Mode) else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _list(value: Any) -> list[Any] | None:
    return value if isinstance(value, list) and value else None


def _counts(value: Any) -> tuple[int, ...] | None:
    items = _list(value)
    if items is None or None in map(_count, items):
        return None
    return tuple(items)
