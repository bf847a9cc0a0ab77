"""Selectors and thresholds: one file of ours, some of it replaced by one of the user's."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from moriio_observed.alerting.errors import AlertsError

Values = Mapping[str, Mapping[str, str | float]]
"""A value by section and name."""

_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")


def parse_values(loaded: Any) -> Values:
    """Return what a values file holds, once it has the right shape.

    Raises:
        AlertsError: It is not a mapping of sections of numbers and texts.
    """
    if not isinstance(loaded, Mapping) or not all(
        isinstance(section, Mapping) for section in loaded.values()
    ):
        raise AlertsError("values are sections of names: see alerts/values.yaml")
    for path, value in _leaves(loaded):
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise AlertsError(f"{path} is a number or a text, not {value!r}")
    return loaded


def override(ours: Values, theirs: Values) -> Values:
    """Return our values with those of the user in their place.

    Raises:
        AlertsError: The user names what is not there, or puts a text for a number or the reverse.
    """
    known = dict(_leaves(ours))
    for path, value in _leaves(theirs):
        if path not in known:
            near = difflib.get_close_matches(path, known, n=1)
            raise AlertsError(f"{path} is no value{f', {near[0]} is' if near else ''}")
        if isinstance(value, str) is not isinstance(known[path], str):
            kind = "text" if isinstance(known[path], str) else "number"
            raise AlertsError(f"{path} is a {kind}, not {value!r}")
    return {name: {**section, **theirs.get(name, {})} for name, section in ours.items()}


def label_names(values: Values, level: str) -> frozenset[str]:
    """The labels of a level: what tells its members apart."""
    return frozenset(str(values["labels"][level]).replace(" ", "").split(","))


def substitute(source: Any, values: Values) -> Any:
    """Return a piece of YAML with every `${section.name}` in its texts replaced.

    Raises:
        AlertsError: No value has such a name.
    """
    if isinstance(source, str):
        return _PLACEHOLDER.sub(lambda match: _value(match[1], values), source)
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
    return {path for path, _ in _leaves(values)}


def _value(path: str, values: Values) -> str:
    section, _, name = path.partition(".")
    try:
        return str(values[section][name])
    except KeyError:
        raise AlertsError(f"${{{path}}} is in a rule and in no values file") from None


def _leaves(values: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    for section, entries in values.items():
        for name, value in entries.items():
            yield f"{section}.{name}", value
