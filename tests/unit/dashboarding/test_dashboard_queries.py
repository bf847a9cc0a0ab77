"""The catalogue of queries."""

import promql_parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moriio_observed.alerting.errors import AlertsError
from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.promql import selectors
from moriio_observed.dashboarding.queries import interpolate, parse_queries

VALUES = {
    "selectors": {"engines": 'namespace="prod"', "vllm": 'job="vllm"'},
    "labels": {"engine": "job, instance"},
}
CHOSEN = 'job=~"$job", instance=~"$instance", model_name=~"$model", engine=~"$engine"'


def test_selectors_become_the_dashboards_variables_and_labels_the_users() -> None:
    source = {"q": {"expr": " sum by (${labels.engine}) (a{${selectors.engines}})\n"}}
    assert parse_queries(source, VALUES)["q"].expr == f"sum by (job, instance) (a{{{CHOSEN}}})"


def test_vllms_own_series_are_chosen_like_ours() -> None:
    assert (
        parse_queries({"q": {"expr": "a{${selectors.vllm}}"}}, VALUES)["q"].expr == f"a{{{CHOSEN}}}"
    )


@pytest.mark.parametrize(
    ("expr", "once"), [("increase(a[$__range])", True), ("rate(a[$__rate_interval])", False)]
)
def test_a_query_over_the_whole_range_is_asked_once(expr, once) -> None:
    assert parse_queries({"q": {"expr": expr}}, VALUES)["q"].once is once


@pytest.mark.parametrize(("expr", "has"), [("a_bucket{b='c'}", True), ("a_total{b='c'}", False)])
def test_buckets_have_exemplars(expr, has) -> None:
    assert parse_queries({"q": {"expr": expr}}, VALUES)["q"].has_exemplars is has


@pytest.mark.parametrize(
    "source",
    [
        *([], {"q": "a"}, {"q": {"legend": "l"}}, {"q": {"expr": "a", "legends": "l"}}),
        *({"q": {"expr": ["a"]}}, {"q": {"expr": "a", "legend": 1}}),
    ],
)
def test_what_is_no_query_is_refused(source) -> None:
    with pytest.raises(DashboardsError, match=r"queries.yaml"):
        parse_queries(source, VALUES)


def test_a_placeholder_without_a_value_is_refused() -> None:
    with pytest.raises(AlertsError, match=r"thresholds.none"):
        parse_queries({"q": {"expr": "a > ${thresholds.none}"}}, VALUES)


def test_interpolated_a_query_is_what_prometheus_takes() -> None:
    asked = 'rate(a{job=~"$job", instance=~"$instance|", tp_rank=~"$rank"}[$__rate_interval])'
    assert interpolate(asked, choices={"job": "d|e"}, rate_interval="1m") == (
        'rate(a{job=~"d|e", instance=~".+|", tp_rank=~".*"}[1m])'
    )


METRICS = st.from_regex(r"[a-z]{1,8}(_total|_bucket)?", fullmatch=True)


@given(st.lists(METRICS, min_size=1, max_size=4), st.sampled_from(["", "rate", "increase"]))
def test_every_selection_of_a_query_is_found_with_the_function_around_it(names, function) -> None:
    parts = [f'{function}({name}{{a="b"}}[5m])' if function else name for name in names]
    query = " + ".join(f"sum by (c) ({part})" for part in parts)
    promql_parser.parse(query)
    assert [(each.name, each.function) for each in selectors(query)] == [
        (name, function) for name in names
    ]
