"""What a query may ask for: known metrics, labels they have, values those take.

A query that names what nobody exposes is silent for ever. So every selector is held against the
catalogue and the recording rules, and every grouping against the labels that reach it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import promql_parser as promql

from moriio_observed.canary import metrics as canary
from moriio_observed.telemetry.catalog import CATALOG, PREFIX, Instrument, Kind

FOREIGN: Mapping[str, frozenset[str]] = {
    "vllm:inter_token_latency_seconds_bucket": frozenset({"model_name", "engine", "le"}),
    "vllm:num_preemptions_total": frozenset({"model_name", "engine"}),
    "vllm:num_requests_running": frozenset({"model_name", "engine"}),
    "vllm:num_requests_waiting": frozenset({"model_name", "engine"}),
    "vllm:time_to_first_token_seconds_bucket": frozenset({"model_name", "engine", "le"}),
}
"""Metrics of vLLM itself that rules and runbooks may ask for, and their labels."""

_WORDS = re.compile(r"[\w|]+")
_SUFFIXES = ("_bucket", "_sum", "_count")
_VLLM = frozenset({"model_name", "engine"})
_CANARY = frozenset(canary.COMMON)
_SCALARS = ("time", "scalar")


@dataclass
class Queries:
    """Checks queries and finds the labels of what they return.

    Args:
        target: Labels that Prometheus adds to every series: job, instance and a user's own.
        recorded: The expression of each recording rule by its name.

    Attributes:
        problems: What was wrong in the queries looked at so far.
    """

    target: frozenset[str]
    recorded: Mapping[str, str]
    problems: list[str] = field(default_factory=list)

    def labels(self, query: str) -> frozenset[str]:
        """Return the labels of a query's result, and note what is wrong in it."""
        try:
            parsed = promql.parse(query)
        except ValueError as error:
            self.problems.append(f"does not parse: {error}")
            return frozenset()
        return self._of(parsed)

    def metrics(self, query: str) -> set[str]:
        """Return the names of all metrics in a query that parses."""
        return {str(selector.name) for selector in _selectors(promql.parse(query))}

    def _of(self, expr: object) -> frozenset[str]:
        for kind, labels in self._kinds().items():
            if isinstance(expr, kind):
                return labels(expr)
        return frozenset()

    def _kinds(self) -> Mapping[type, Callable[..., frozenset[str]]]:
        return {
            promql.VectorSelector: self._selector,
            promql.MatrixSelector: lambda expr: self._selector(expr.vector_selector),
            promql.AggregateExpr: self._aggregate,
            promql.BinaryExpr: self._binary,
            promql.Call: self._call,
            promql.ParenExpr: lambda expr: self._of(expr.expr),
            promql.SubqueryExpr: lambda expr: self._of(expr.expr),
            promql.UnaryExpr: lambda expr: self._of(expr.expr),
        }

    def _selector(self, selector: promql.VectorSelector) -> frozenset[str]:
        name = str(selector.name)
        known = self._known(name)
        if known is None:
            self.problems.append(f"nobody exposes {name}")
            return frozenset()
        labels, closed = known
        for matcher in selector.matchers.matchers:
            self._matcher(name, matcher, labels, closed)
        return labels

    def _known(self, name: str) -> tuple[frozenset[str], Mapping[str, tuple[str, ...]]] | None:
        if (instrument := instrument_of(name)) is not None:
            bucket = frozenset({"le"} if name.endswith("_bucket") else ())
            whose = (
                self.target - _VLLM | _CANARY if canary.asked_for_in(name) else self.target | _VLLM
            )
            return whose | bucket | set(instrument.labels), instrument.closed
        if name in self.recorded:
            return self._of(promql.parse(self.recorded[name])), {
                label: values
                for metric in self.metrics(self.recorded[name])
                for label, values in (self._known(metric) or (None, {}))[1].items()
            }
        if name in FOREIGN:
            return self.target | FOREIGN[name], {}
        return None

    def _matcher(
        self,
        name: str,
        matcher: promql.Matcher,
        labels: frozenset[str],
        closed: Mapping[str, tuple[str, ...]],
    ) -> None:
        if matcher.name not in labels:
            self.problems.append(f"{name} has no label {matcher.name}")
        if (taken := closed.get(matcher.name)) is None:
            return
        for value, pattern in _wanted(matcher):
            if not any(re.fullmatch(pattern, one) for one in taken):
                self.problems.append(f"{matcher.name} of {name} is never {value}")

    def _aggregate(self, expr: promql.AggregateExpr) -> frozenset[str]:
        inner = self._of(expr.expr)
        if expr.modifier is None:
            return frozenset()
        named = frozenset(expr.modifier.labels)
        by = expr.modifier.type == promql.AggModifierType.By
        self._need(named, inner, f"{expr.op} {'by' if by else 'without'}")
        return named if by else inner - named

    def _binary(self, expr: promql.BinaryExpr) -> frozenset[str]:
        left, right = self._of(expr.lhs), self._of(expr.rhs)
        if _is_scalar(expr.lhs):
            return right
        if _is_scalar(expr.rhs) or expr.modifier is None:
            return left
        if (matching := expr.modifier.matching) is not None:
            how, _, _ = str(matching).partition(" ")
            have = left & right if how == "on" else left | right
            self._need(frozenset(matching.labels), have, f"{expr.op} {how}")
        return left | right if str(expr.op) == "or" else left

    def _call(self, expr: promql.Call) -> frozenset[str]:
        inner = [self._of(argument) for argument in expr.args]
        added = {expr.args[1].val} if expr.func.name == "label_replace" else set()
        return frozenset(added).union(*inner)

    def _need(self, named: frozenset[str], have: frozenset[str], where: str) -> None:
        if missing := sorted(named - have):
            self.problems.append(f"{where}: no label {', '.join(missing)}")


def _wanted(matcher: promql.Matcher) -> list[tuple[str, str]]:
    """The values that a matcher asks for, each with the expression it stands for."""
    value = matcher.value
    if matcher.op not in (promql.MatchOp.Re, promql.MatchOp.NotRe):
        return [(value, re.escape(value))]
    # Each of some plain words has to be one; of anything else the whole.
    alternatives = value.split("|") if _WORDS.fullmatch(value) else [value]
    return [(each, each) for each in alternatives]


def _is_scalar(expr: promql.Expr) -> bool:
    return isinstance(expr, promql.NumberLiteral) or (
        isinstance(expr, promql.Call) and expr.func.name in _SCALARS
    )


def instrument_of(name: str) -> Instrument | canary.Instrument | None:
    """Return what its catalogue calls a series, an engine's or a canary's; None: neither has it."""
    prefix, catalog = (
        (canary.PREFIX, canary.CATALOG) if canary.asked_for_in(name) else (PREFIX, CATALOG)
    )
    if not name.startswith(prefix):
        return None
    short = name.removeprefix(prefix)
    if (instrument := catalog.get(short)) is not None:
        return instrument if instrument.kind is not Kind.HISTOGRAM else None
    for suffix in _SUFFIXES:
        instrument = catalog.get(short.removesuffix(suffix)) if short.endswith(suffix) else None
        if instrument is not None and instrument.kind is Kind.HISTOGRAM:
            return instrument
    return None


def _selectors(expr: promql.Expr) -> list[promql.VectorSelector]:
    found: list[promql.VectorSelector] = []

    def visit(node: promql.Expr) -> None:
        if isinstance(node, promql.MatrixSelector):
            node = node.vector_selector
        if isinstance(node, promql.VectorSelector):
            found.append(node)

    promql.walk(expr, visit)
    return found
