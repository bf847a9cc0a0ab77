"""The catalogue of queries, `queries.yaml` beside the rules, as dashboards and as tests need it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moriio_observed.alerting.rules import CANARY_VARIABLES, VARIABLES
from moriio_observed.alerting.values import Values, substitute
from moriio_observed.dashboarding.errors import DashboardsError

RATE_INTERVAL = "$__rate_interval"
RANGE = "$__range"
CHOOSABLE = frozenset({*VARIABLES.values(), "rank", *CANARY_VARIABLES.values()})
"""The variables of dashboards, of whose values some can be chosen."""

_KEYS = {"expr", "legend"}


def _matchers(variables: Mapping[str, str]) -> str:
    return ", ".join(f'{label}=~"${variable}"' for label, variable in variables.items())


_OF_ENGINES, _OF_CANARIES = _matchers(VARIABLES), _matchers(CANARY_VARIABLES)


@dataclass(frozen=True, slots=True)
class Query:
    """One query of the catalogue.

    Attributes:
        expr: PromQL, with Grafana's own variables.
        legend: How Grafana shall call a series; empty where a table names its columns.
    """

    expr: str
    legend: str = ""

    @property
    def once(self) -> bool:
        """Whether it is about the whole time range, and so asked once."""
        return RANGE in self.expr

    @property
    def has_exemplars(self) -> bool:
        """Whether the series it asks for may carry traces."""
        return "_bucket{" in self.expr


def parse_queries(loaded: Any, values: Values) -> Mapping[str, Query]:
    """Return the queries of a catalogue by name, with the dashboards' variables in place.

    Args:
        loaded: What `queries.yaml` holds.
        values: What stands for the placeholders, selectors excepted.

    Raises:
        DashboardsError: An entry is not a query.
        AlertsError: A placeholder has no value.
    """
    if not isinstance(loaded, Mapping):
        raise DashboardsError("queries.yaml maps names to queries")
    for name, query in loaded.items():
        if not isinstance(query, Mapping) or not _is_query(query):
            raise DashboardsError(
                f"queries.yaml: {name} has an expr and perhaps a legend, not {query!r}"
            )
    selectors = dict.fromkeys(values["selectors"], _OF_ENGINES) | {"canaries": _OF_CANARIES}
    sources = substitute(dict(loaded), {**values, "selectors": selectors})
    return {
        name: Query(source["expr"].strip(), source.get("legend", ""))
        for name, source in sources.items()
    }


def _is_query(entry: Mapping[Any, Any]) -> bool:
    texts = all(isinstance(text, str) for text in entry.values())
    return texts and "expr" in entry and _KEYS.issuperset(entry)


def interpolate(
    expr: str,
    *,
    choices: Mapping[str, str] | None = None,
    rate_interval: str = "5m",
    time_range: str = "1h",
) -> str:
    """Return a panel's query as Grafana would send it.

    Args:
        expr: PromQL with Grafana's variables.
        choices: What is chosen, as a regular expression by variable; everything where unsaid.
        rate_interval: What stands for `$__rate_interval`.
        time_range: What stands for `$__range`.
    """
    text = expr.replace(RATE_INTERVAL, rate_interval).replace(RANGE, time_range)
    everything = dict.fromkeys(CHOOSABLE, ".+") | {"rank": ".*"}
    for variable, choice in {**everything, **(choices or {})}.items():
        text = text.replace(f"${variable}", choice)
    return text
