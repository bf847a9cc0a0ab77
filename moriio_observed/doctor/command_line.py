"""A `vllm serve` command line, read as vLLM reads it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from moriio_observed.config import shown
from moriio_observed.doctor.errors import InputError
from moriio_observed.doctor.json_text import parse_object

TRANSFER = "kv-transfer-config"
COMPILATION = "compilation-config"
JSON_OPTIONS = (TRANSFER, COMPILATION)
FLAGS = frozenset({"enforce-eager", "disable-log-stats", "async-scheduling"})
"""Options of interest that take no value."""

_SHORT = {
    "tp": "tensor-parallel-size",
    "dp": "data-parallel-size",
    "dpl": "data-parallel-size-local",
    "dpn": "data-parallel-rank",
    "dcp": "decode-context-parallel-size",
    "pcp": "prefill-context-parallel-size",
    "pp": "pipeline-parallel-size",
    "cc": COMPILATION,
}
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_CONTINUED = re.compile(r"\\\r?\n")
_COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
_IMAGE = re.compile(r"(^|/)vllm-openai[\w.-]*([:@][\w.:-]+)?$")
_LEVEL = re.compile(r"\d{1,9}")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


@dataclass
class CommandLine:
    """What a command line says.

    Attributes:
        environ: Variables set in front of the command, exported before it or given to a container.
        model: The model; empty if none is named.
        plain: The values of the JSON options.
        dotted: What of them was given key by key, as in ``-cc.cudagraph_mode=NONE``.
        options: All other options by their long name without dashes; None for a bare flag.
    """

    environ: dict[str, str] = field(default_factory=dict)
    model: str = ""
    plain: dict[str, dict[str, Any]] = field(default_factory=dict)
    dotted: dict[str, dict[str, Any]] = field(default_factory=dict)
    options: dict[str, str | None] = field(default_factory=dict)

    @property
    def transfer(self) -> dict[str, Any] | None:
        """The value of ``--kv-transfer-config``; None if there is none."""
        return self._json(TRANSFER)

    @property
    def compilation(self) -> dict[str, Any]:
        """That of ``--compilation-config``."""
        return self._json(COMPILATION) or {}

    def _json(self, name: str) -> dict[str, Any] | None:
        # vLLM puts what was given key by key behind everything else: it wins whole.
        return self.dotted.get(name, self.plain.get(name))


def split(text: str) -> list[str]:
    """The words of a command line, or of a script that starts one, as a shell sees them.

    Raises:
        InputError: A quote is not closed.
    """
    try:
        return shlex.split(_CONTINUED.sub(" ", _COMMENT.sub("", text)))
    except ValueError as error:
        raise InputError(
            f"the command line cannot be read: {error} in {shown(text)}; JSON goes between single "
            "quotes"
        ) from None


def read(words: Sequence[str], file: Sequence[str] = ()) -> CommandLine:
    """Read a command line.

    Args:
        words: Its words.
        file: What its ``--config`` file says, as such words. Its own overrule them.

    Raises:
        InputError: An option of interest has no value, or a JSON option is not JSON.
    """
    line = CommandLine()
    rest = [*file, *_skip_program(list(words), line)]
    model = ""
    while rest:
        word = rest.pop(0)
        if _is_program(word):
            raise InputError(
                "the command line starts two engines: give each in a --command of its own"
            )
        if not word.startswith("-") or word == "-":
            model = model or word
            continue
        name, path, value = _option(word)
        if name == "optimization-level" and value is None:
            value = _next(rest, word)
        if name in JSON_OPTIONS:
            _take_json(line, name, path, _next(rest, word) if value is None else value, word)
        else:
            if value is None and name not in FLAGS and rest and not _is_option(rest[0]):
                value = rest.pop(0)
            _take(line, name, value)
    line.model = model or line.model
    return line


def _skip_program(words: list[str], line: CommandLine) -> list[str]:
    """The words behind ``A=B vllm serve``, ``…api_server`` or an image; keeps the variables."""
    starts = [index for index, word in enumerate(words) if _is_program(word)]
    # The image's own entry point, where no other program is named.
    starts += [index for index, word in enumerate(words) if _IMAGE.search(word)]
    start = next(iter(starts), None)
    front = list(takewhile(_ASSIGNMENT.match, words)) if start is None else words[:start]
    for word in filter(_ASSIGNMENT.match, front):
        name, _, value = word.partition("=")
        line.environ[name] = _filled_in(value, line.environ)
    rest = words[len(front) + (start is not None) :]
    if start is None and rest and not rest[0].startswith("-"):
        raise InputError(
            f"the command line {shown(' '.join(words))} is not one of vLLM's: expected 'vllm serve "
            "MODEL …', 'python -m vllm.entrypoints.openai.api_server …' or 'docker run … "
            "vllm/vllm-openai …'"
        )
    return [_filled_in(word, line.environ) for word in rest]


def _is_program(word: str) -> bool:
    return word == "serve" or word.endswith("api_server")


def _filled_in(text: str, variables: Mapping[str, str]) -> str:
    """A word with the variables that are known in it; of others it keeps the names."""
    return _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], found[0]), text)


def _option(word: str) -> tuple[str, list[str], str | None]:
    """An option's long name, the path behind a dot in it, and its value if it has one with it."""
    if word.startswith("-O") and not word.startswith("--"):
        level = word[2:].removeprefix("=")
        return "optimization-level", [], level or None
    text, equals, value = word.partition("=")
    name, *path = text.lstrip("-").split(".")
    name = name.replace("_", "-") if text.startswith("--") else _SHORT.get(name, name)
    return name, path, value if equals else None


def _is_option(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word)


def _next(rest: list[str], option: str) -> str:
    if not rest:
        raise InputError(f"{option} is the last word of the command line: it wants a value")
    return rest.pop(0)


def _take(line: CommandLine, name: str, value: str | None) -> None:
    if name == "model":
        line.model = value or ""
    elif name.startswith("no-") and value in (None, "true"):
        line.options[name.removeprefix("no-")] = "false"
    else:
        line.options[name] = value


def _take_json(line: CommandLine, name: str, path: list[str], value: str, word: str) -> None:
    if path:
        _set(line.dotted.setdefault(name, {}), path, value, word)
    elif name == COMPILATION and _LEVEL.fullmatch(value.strip()):
        line.plain[name] = {"mode": int(value)}
    else:
        line.plain[name] = parse_object(value, word.partition("=")[0])


def _set(owner: dict[str, Any], path: list[str], text: str, word: str) -> None:
    """Take ``-cc.pass_config.fuse 1``: what is JSON is taken as such, all else as text."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    *parents, key = path
    for parent in parents:
        owner = owner.setdefault(parent, {})
        if not isinstance(owner, dict):
            raise InputError(f"{word}: {parent} is given as {shown(owner)} before, not as a group")
    owner[key] = value
