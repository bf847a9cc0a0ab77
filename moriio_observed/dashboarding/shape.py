"""The shape of a dashboard: what all who look at one take for granted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moriio_observed.config import shown

LARGEST = 10_000
"""Rows or columns; no dashboard has so many."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A value that holds no others.

    Attributes:
        name: What it is called.
        fits: Whether a value is one.
    """

    name: str
    fits: Callable[[Any], bool]


_TEXT = _Kind("a text", lambda value: isinstance(value, str))
_ID = _Kind("a whole number", lambda value: isinstance(value, int))
_CELLS = _Kind(
    f"a whole number from 0 to {LARGEST}",
    lambda value: isinstance(value, int) and 0 <= value <= LARGEST,
)
_LIST = _Kind("a list", lambda value: isinstance(value, list))

Shape = Mapping[str, Any] | list[Any] | _Kind
"""A mapping's known keys, none of which has to be there; a list's items; or a value."""

_DATASOURCE: Shape = {"uid": _TEXT}
_TARGET: Shape = {"refId": _TEXT, "expr": _TEXT, "datasource": _DATASOURCE}
_PANEL: dict[str, Any] = {
    "type": _TEXT,
    "id": _ID,
    "title": _TEXT,
    "gridPos": dict.fromkeys("xywh", _CELLS),
    "datasource": _DATASOURCE,
    "targets": [_TARGET],
    "fieldConfig": {"defaults": {"thresholds": {"steps": _LIST}}},
    "options": {},
}
_PANEL["panels"] = [_PANEL]  # of a folded row
_DASHBOARD: Shape = {
    "uid": _TEXT,
    "title": _TEXT,
    "panels": [_PANEL],
    "templating": {"list": [{"name": _TEXT, "type": _TEXT, "datasource": _DATASOURCE}]},
    "annotations": {"list": [{"datasource": _DATASOURCE, "target": {"expr": _TEXT}}]},
}


def malformed(dashboard: Any) -> str | None:
    """The first part that has another shape than Grafana gives it; None where all have it."""
    return next(_problems(dashboard, _DASHBOARD, ""), None)


def _problems(part: Any, shape: Shape, path: str) -> Iterator[str]:
    if isinstance(shape, _Kind):
        if not shape.fits(part):
            yield f"{path} is {shape.name}, not {shown(part)}"
    elif isinstance(shape, list):
        if not isinstance(part, list):
            yield f"{path} is a list, not {shown(part)}"
            return
        for index, item in enumerate(part):
            yield from _problems(item, shape[0], f"{path}[{index}]")
    elif not isinstance(part, Mapping):
        yield f"{path or 'it'} is a mapping, not {shown(part)}"
    else:
        for key in filter(part.__contains__, shape):
            yield from _problems(part[key], shape[key], f"{path}.{key}".lstrip("."))
