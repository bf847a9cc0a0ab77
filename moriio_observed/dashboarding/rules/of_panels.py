"""Rules about one panel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from moriio_observed.dashboarding.rules.parts import DATASOURCE


def _says_what_it_shows(panel: Mapping[str, Any]) -> Iterator[str]:
    defaults = panel.get("fieldConfig", {}).get("defaults", {})
    for key in ("title", "description"):
        if not panel.get(key):
            yield f"no {key}"
    if not defaults.get("unit"):
        yield "no unit"
    if not defaults.get("thresholds", {}).get("steps"):
        yield "no thresholds"


def _asks_something(panel: Mapping[str, Any]) -> Iterator[str]:
    targets = panel.get("targets", [])
    if not targets:
        yield "no queries"
    for target in targets:
        if not target.get("expr", "").strip():
            yield f"query {target.get('refId')} is empty"
    names = [target.get("refId") for target in targets]
    if len(set(names)) != len(names):
        yield "two queries have the same refId"


def _asks_the_chosen_datasource(panel: Mapping[str, Any]) -> Iterator[str]:
    for part in (panel, *panel.get("targets", ())):
        if part.get("datasource", {}).get("uid") != DATASOURCE:
            yield f"{part.get('refId') or 'it'} does not ask the chosen datasource"


def _is_of_today(panel: Mapping[str, Any]) -> Iterator[str]:
    if "footer" in panel.get("options", {}):
        yield "its table has the footer of old Grafanas"


RULES: tuple[Callable[[Mapping[str, Any]], Iterator[str]], ...] = (
    _says_what_it_shows,
    _asks_something,
    _asks_the_chosen_datasource,
    _is_of_today,
)
