"""Selectors and thresholds: one file of ours, some of it replaced by one of the user's."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from moriio_observed.alerting.errors import AlertsError, ValuesError

Values = Mapping[str, Mapping[str, str | float]]
"""A value by section and name."""

_SHAPE = "sections of names, such as thresholds: {barrier_wait_share: 0.4}"
_PLACEHOLDER = re.compile(r"\$\{([^}\n]*)\}?")


def parse_values(loaded: Any) -> Values:
    """Return what a values file holds, once it has the right shape.

    Raises:
        ValuesError: It is not a mapping of sections of numbers and texts.
    """
    if not isinstance(loaded, Mapping):
        raise ValuesError(f"values are {_SHAPE}, not {loaded!r}")
    for name, section in loaded.items():
        if not isinstance(section, Mapping):
            raise ValuesError(f"{name} is a section, not {section!r}: values are {_SHAPE}")
    for path, value in leaves(loaded):
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValuesError(f"{path} is a number or a text, not {value!r}")
    return loaded


def override(ours: Values, theirs: Values) -> Values:
    """Return our values with those of the user in their place.

    Raises:
        ValuesError: The user names what is not there, or puts a text for a number or the reverse.
    """
    known = dict(leaves(ours))
    for path, value in leaves(theirs):
        if path not in known:
            raise ValuesError(f"{path} ({value!r}) is no value{_nearest(path, known)}")
        if isinstance(value, str) is not isinstance(known[path], str):
            kind = "text" if isinstance(known[path], str) else "number"
            raise ValuesError(f"{path} is a {kind} such as {known[path]!r}, not {value!r}")
    return {name: {**section, **theirs.get(name, {})} for name, section in ours.items()}


def label_names(values: Values, level: str) -> frozenset[str]:
    """The labels of a level: what tells its members apart."""
    return frozenset(str(values["labels"][level]).replace(" ", "").split(","))


def substitute(source: Any, values: Values) -> Any:
    """Return a piece of YAML with every `${section.name}` in its texts replaced.

    Raises:
        AlertsError: No value has such a name, or a placeholder is not closed.
    """
    if isinstance(source, str):
        return _PLACEHOLDER.sub(lambda match: _value(match, values), source)
    if isinstance(source, Mapping):
        return {key: substitute(value, values) for key, value in source.items()}
    if isinstance(source, list):
        return [substitute(item, values) for item in source]
    return source


def placeholders(source: str) -> set[str]:
    """The values that a text asks for, as `section.name`."""
    return set(_PLACEHOLDER.findall(source))


def value_names(values: Values) -> set[str]:
    """Every value, as `section.name`."""
    return {path for path, _ in leaves(values)}


def _value(placeholder: re.Match[str], values: Values) -> str:
    if not placeholder[0].endswith("}"):
        raise AlertsError(f"{placeholder[0]} in a rule is not closed: ${{section.name}}")
    section, _, name = placeholder[1].partition(".")
    try:
        return str(values[section][name])
    except KeyError:
        nearest = _nearest(placeholder[1], value_names(values))
        raise AlertsError(f"{placeholder[0]} is in a rule and in no values file{nearest}") from None


def _nearest(path: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(path, known, n=1)
    return f"; {near[0]} is" if near else ""


def leaves(values: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield every value with its name, as `section.name`."""
    for section, entries in values.items():
        for name, value in entries.items():
            yield f"{section}.{name}", value
