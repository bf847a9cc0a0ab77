"""Each rule, held against the smallest dashboard that keeps all of them and one that breaks it."""

import copy

import pytest

from moriio_observed.dashboarding import rules

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
MATCHED = 'job=~"$job", instance=~"$instance"'
KNOWN = rules.Known(
    target=frozenset({"job", "instance"}),
    recorded={
        "engine:x:rate5m": "sum by (job, instance) (rate(moriio_requests_total[5m]))",
        "canary:moriio_canary_rounds:increase5m": (
            "sum by (model_name, target) (increase(moriio_canary_rounds_total[5m]))"
        ),
    },
    runbooks=frozenset({"MoriioLateLandings"}),
)


def variable(name: str) -> dict:
    return {
        "name": name,
        "type": "query",
        "query": {"query": f"label_values(moriio_config_info, {name})"},
        "datasource": DATASOURCE,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "refresh": 2,
    }


WELL = {
    "title": "T",
    "uid": "t",
    "description": "D",
    "editable": False,
    "templating": {
        "list": [
            {"name": "datasource", "type": "datasource", "query": "prometheus"},
            variable("job"),
            variable("instance"),
        ]
    },
    "annotations": {
        "list": [
            {"name": "theirs", "builtIn": 1, "datasource": {"uid": "-- Grafana --"}},
            {
                "name": "alerts",
                "datasource": DATASOURCE,
                "target": {"expr": 'ALERTS{job=~"$job", instance=~"$instance|"}'},
            },
        ]
    },
    "panels": [
        {"id": 1, "type": "row", "title": "R", "gridPos": {"x": 0, "y": 0, "w": 24, "h": 1}},
        {
            "id": 2,
            "type": "stat",
            "title": "P",
            "description": "D",
            "datasource": DATASOURCE,
            "gridPos": {"x": 0, "y": 1, "w": 12, "h": 4},
            "options": {},
            "links": [
                {"url": "/d/moriio-fleet?${job:queryparam}"},
                {"url": "${runbooks}/MoriioLateLandings.md"},
            ],
            "fieldConfig": {
                "defaults": {"unit": "short", "thresholds": {"steps": [{"color": "green"}]}}
            },
            "targets": [
                {
                    "refId": "A",
                    "datasource": DATASOURCE,
                    "expr": f"sum(rate(moriio_requests_total{{{MATCHED}}}[$__rate_interval]))",
                }
            ],
        },
    ],
}


def problems(dashboard: dict) -> list[str]:
    return list(rules.problems(dashboard, KNOWN))


def changed(path: str, value: object) -> dict:
    """The dashboard with one value in another's place; `...` takes it away."""
    dashboard = copy.deepcopy(WELL)
    *parents, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    place = dashboard
    for parent in parents:
        place = place[parent]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return dashboard


def asking(expr: str) -> list[str]:
    """What is told of a dashboard whose panel asks this; MATCHED stands for the variables."""
    dashboard = changed("panels/1/targets/0/expr", expr.replace("MATCHED", MATCHED))
    return [told.removeprefix("panel 'P', query A: ") for told in problems(dashboard)]


def test_a_dashboard_that_keeps_every_rule_is_well() -> None:
    assert problems(WELL) == []


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("title", "", "no title"),
        ("uid", ..., "no uid"),
        ("description", "", "no description"),
        ("editable", ..., "editable: what is changed in the browser is lost with the next push"),
        ("templating/list/0", ..., "no variable datasource that chooses a Prometheus"),
        ("templating/list/0/query", "loki", "no variable datasource that chooses a Prometheus"),
        ("templating/list/1/type", "textbox", "no variable job that asks for its values"),
        ("templating/list/2/multi", False, "variable instance cannot be several or all"),
        ("templating/list/1/includeAll", False, "variable job cannot be several or all"),
        ("templating/list/1/allValue", "*", "variable job: all is .+, not *"),
        ("templating/list/1/auto", False, "variable job has keys of intervals: auto"),
        ("templating/list/1/refresh", 1, "variable job is not asked again when the time changes"),
        ("templating/list/1/datasource", {}, "variable job does not ask the chosen datasource"),
        (
            "templating/list/1/query",
            "metrics(moriio)",
            "variable job asks no label_values(series, label): metrics(moriio)",
        ),
        (
            "templating/list/1/query",
            "label_values(moriio_gone, job)",
            "variable job: nobody exposes moriio_gone",
        ),
        (
            "templating/list/1/query",
            "label_values(moriio_config_info, tp_rank)",
            "variable job: sum by: no label tp_rank",
        ),
        ("annotations/list/1", ..., "no annotation shows alerts"),
        (
            "annotations/list/1/datasource",
            {"uid": "prom"},
            "annotation 'alerts' does not ask the chosen datasource",
        ),
        ("panels/1/id", 1, "panels without an id, or with the same one"),
        ("panels/1/id", ..., "panels without an id, or with the same one"),
        ("panels/1/gridPos/x", 13, "panel 'P' is not within the 24 columns"),
        ("panels/1/gridPos", ..., "panel 'P' is not within the 24 columns"),
        ("panels/1/gridPos/y", 0, "panel 'P' lies over 'R'"),
        ("panels/1/title", "", "panel 2: no title"),
        ("panels/1/description", "", "panel 'P': no description"),
        ("panels/1/fieldConfig/defaults/unit", ..., "panel 'P': no unit"),
        ("panels/1/fieldConfig/defaults/thresholds/steps", [], "panel 'P': no thresholds"),
        ("panels/1/targets", [], "panel 'P': no queries"),
        ("panels/1/targets/0/expr", " ", "panel 'P': query A is empty"),
        ("panels/1/datasource", {}, "panel 'P': it does not ask the chosen datasource"),
        (
            "panels/1/targets/0/datasource/uid",
            "prom",
            "panel 'P': A does not ask the chosen datasource",
        ),
        ("panels/1/options/footer", {}, "panel 'P': its table has the footer of old Grafanas"),
        (
            "panels/1/links/0/url",
            "/d/moriio-gone",
            "a link leads to moriio-gone, which is none of our dashboards",
        ),
        (
            "panels/1/links/1/url",
            "${runbooks}/MoriioGone.md",
            "a link leads to the runbook MoriioGone, which there is not",
        ),
    ],
)
def test_what_breaks_a_rule_is_told(path, value, told) -> None:
    assert told in problems(changed(path, value))


def test_two_queries_of_a_panel_have_names_of_their_own() -> None:
    target = WELL["panels"][1]["targets"][0]
    assert problems(changed("panels/1/targets", [target, target])) == [
        "panel 'P': two queries have the same refId"
    ]


def test_a_variable_that_no_query_uses_is_told() -> None:
    dashboard = copy.deepcopy(WELL)
    dashboard["templating"]["list"].append(variable("engine"))
    assert problems(dashboard) == [
        "variable engine is in no query: choosing it changes nothing",
    ]


def test_a_variable_that_is_not_there_is_told() -> None:
    expr = 'max(moriio_reads_in_flight{tp_rank=~"$rank", MATCHED})'
    assert asking(expr) == ["no variable rank, though a query asks for it"]


def test_panels_of_a_folded_row_are_held_to_the_rules() -> None:
    panel = WELL["panels"][1] | {"description": ""}
    assert problems(changed("panels/0/panels", [panel])) == ["panel 'P': no description"]


@pytest.mark.parametrize(
    "expr",
    [
        "sum(increase(moriio_requests_total{MATCHED}[$__range]))",
        "max(moriio_reads_in_flight{MATCHED})",
        "engine:x:rate5m{MATCHED}",
        "histogram_quantile(0.9, rate(moriio_post_seconds_bucket{MATCHED}[$__rate_interval]))",
        "deriv(moriio_deferred_sends{MATCHED}[15m])",
        "sum(vllm:num_requests_running{MATCHED})",
        'label_replace(moriio_reads_in_flight{MATCHED}, "a", "$1", "job", "(.+)")',
    ],
)
def test_queries_that_keep_the_rules_are_well(expr) -> None:
    assert asking(expr) == []


@pytest.mark.parametrize(
    "expr",
    [
        'max(moriio_canary_golden_prompts{target=~"$target"})',
        'max(canary:moriio_canary_rounds:increase5m{target=~"$target"})',
        'count(ALERTS{alertname=~"MoriioCanary.+", target=~"$target"})',
    ],
)
def test_what_a_canary_tells_is_chosen_by_what_it_probes(expr) -> None:
    dashboard = changed("panels/1/targets/0/expr", expr)
    target = variable("target") | {"query": "label_values(moriio_canary_info, target)"}
    dashboard["templating"]["list"].append(target)
    assert problems(dashboard) == []


@pytest.mark.parametrize(
    ("expr", "told"),
    [
        ("sum(moriio_gone{MATCHED})", "nobody exposes moriio_gone"),
        (
            'max(moriio_reads_in_flight{cause="x", MATCHED})',
            "moriio_reads_in_flight has no label cause",
        ),
        (
            'rate(moriio_barrier_timeouts_total{site="nowhere", MATCHED}[$__rate_interval])',
            "site of moriio_barrier_timeouts_total is never nowhere",
        ),
        ("sum by (tp_rank) (moriio_deferred_sends{MATCHED})", "sum by: no label tp_rank"),
        (
            'max(moriio_reads_in_flight{job=~"$job"})',
            "moriio_reads_in_flight is not matched with the variable instance",
        ),
        (
            'max(moriio_reads_in_flight{job="prod", instance=~"$instance"})',
            "moriio_reads_in_flight is not matched with the variable job",
        ),
        (
            "max(moriio_reads_in_flight{MATCHED}) / max(moriio_deferred_sends)",
            "moriio_deferred_sends is not matched with the variable job",
        ),
        (
            "max(moriio_canary_golden_prompts{MATCHED})",
            "moriio_canary_golden_prompts is not matched with the variable target",
        ),
        (
            'count(ALERTS{job=~"$job"})',
            "ALERTS is not matched with the variable instance",
        ),
        (
            "sum(rate(moriio_requests_total{MATCHED}[5m]))",
            "rate looks back over $__rate_interval, not 5m",
        ),
        (
            "sum(rate(moriio_requests_total{MATCHED}[$__range]))",
            "rate looks back over $__rate_interval, not $__range",
        ),
        (
            "sum(increase(moriio_requests_total{MATCHED}[1h]))",
            "increase looks back over $__range or $__rate_interval, not 1h",
        ),
        (
            "sum(moriio_requests_total{MATCHED})",
            "moriio_requests_total is a counter: ask for its rate or increase",
        ),
        (
            "sum_over_time(moriio_requests_total{MATCHED}[1h])",
            "moriio_requests_total is a counter: ask for its rate or increase",
        ),
        (
            "sum by (le) (moriio_post_seconds_bucket{MATCHED})",
            "moriio_post_seconds_bucket is a counter: ask for its rate or increase",
        ),
        (
            "sum(vllm:num_preemptions_total{MATCHED})",
            "vllm:num_preemptions_total is a counter: ask for its rate or increase",
        ),
    ],
)
def test_what_is_wrong_with_a_query_is_told(expr, told) -> None:
    assert told in asking(expr)


def test_a_query_that_does_not_parse_is_told() -> None:
    (told,) = asking("sum(moriio_requests_total{MATCHED}")
    assert told.startswith("does not parse")
