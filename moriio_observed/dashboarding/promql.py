"""What the queries of panels ask for: the selectors in them, and whether those are known."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import promql_parser as promql

from moriio_observed.alerting.queries import FOREIGN, Queries, instrument_of
from moriio_observed.telemetry.catalog import Kind

ALERTS = "ALERTS"

_OF_AN_ALERT = frozenset(
    {"alertname", "alertstate", "severity", "incident", "kind", "model_name", "engine", "target"}
)
_RANGED = re.compile(r"(\w+)\(\s*[\w:]+(?:\{[^}]*\})?\s*\[([^\]]+)\]")
_RATES = frozenset({"rate", "irate", "increase"})


class PanelQueries(Queries):
    """Checks queries as the alerts' are checked, and knows Prometheus' own series of alerts."""

    def _known(self, name: str) -> tuple[frozenset[str], Mapping[str, tuple[str, ...]]] | None:
        if name == ALERTS:
            return self.target | _OF_AN_ALERT, {}
        return super()._known(name)


@dataclass(frozen=True, slots=True)
class Selector:
    """One selection of series in a query.

    Attributes:
        name: The metric.
        matchers: The value that each label is matched with.
        function: The function it is the direct argument of, empty where there is none.
    """

    name: str
    matchers: Mapping[str, str]
    function: str = ""

    @property
    def is_bare_counter(self) -> bool:
        """Whether it shows a counter's total, which says nothing."""
        return _is_counter(self.name) and self.function not in _RATES


def selectors(query: str) -> list[Selector]:
    """Return every selection in a query that parses.

    Raises:
        ValueError: It does not.
    """
    return list(_selectors(promql.parse(query), ""))


def ranges(query: str) -> Iterator[tuple[str, str]]:
    """Yield each function over time in a query as Grafana has it, with the time it looks back."""
    yield from _RANGED.findall(query)


def _is_counter(name: str) -> bool:
    instrument = instrument_of(name)
    if instrument is None:
        return name in FOREIGN and name.endswith("_total")
    return instrument.kind is not Kind.GAUGE


def _selectors(expr: promql.Expr, function: str) -> Iterator[Selector]:
    match expr:
        case promql.VectorSelector():
            matchers = {each.name: each.value for each in expr.matchers.matchers}
            yield Selector(str(expr.name), matchers, function)
        case promql.MatrixSelector():
            yield from _selectors(expr.vector_selector, function)
        case promql.Call():
            for argument in expr.args:
                yield from _selectors(argument, expr.func.name)
        case promql.BinaryExpr():
            yield from _selectors(expr.lhs, "")
            yield from _selectors(expr.rhs, "")
        case (
            promql.AggregateExpr() | promql.ParenExpr() | promql.SubqueryExpr() | promql.UnaryExpr()
        ):
            yield from _selectors(expr.expr, "")
