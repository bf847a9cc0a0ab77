import copy

import pytest
import yaml

from moriio_observed.alerting.formats import FORMATS
from moriio_observed.alerting.rules import render_groups
from moriio_observed.alerting.yaml_text import to_yaml

VALUES = {
    "selectors": {"engines": 'job="d"'},
    "labels": {
        "engine": "job, instance, model_name, engine",
        "fleet": "job, model_name",
        "canary": "job, model_name, target",
    },
    "links": {"runbooks": "https://runbooks.example/", "dashboards": "https://grafana.example/d/"},
    "resource": {"name": "ours", "release": "prom", "namespace": "there"},
}
SOURCES = [
    {
        "name": "group",
        "interval": "1m",
        "rules": [
            {"record": "fleet:x:rate5m", "expr": "  sum(x{${selectors.engines}})\n+\n  1\n"},
            {
                "alert": "OfAnEngine",
                "expr": "sum by (${labels.engine}) (x) > 0",
                "keep_firing_for": "5m",
                "annotations": {"summary": "s", "dashboard": "fleet"},
            },
            {
                "alert": "OfACanary",
                "expr": "sum by (${labels.canary}) (moriio_canary_x) > 0",
                "annotations": {"summary": "s", "dashboard": "salad-watch"},
            },
            {
                "alert": "OfAFleet",
                "expr": "fleet:x:rate5m > 0",
                "annotations": {"summary": "s", "dashboard": "salad-watch"},
            },
        ],
    }
]


@pytest.fixture
def rules():
    recording, engine, canary, fleet = render_groups(SOURCES, VALUES)[0]["rules"]
    return {"recording": recording, "engine": engine, "canary": canary, "fleet": fleet}


def test_the_users_selector_is_in_the_query(rules) -> None:
    assert 'sum(x{job="d"})' in rules["recording"]["expr"]


def test_a_runbook_is_named_after_its_alert(rules) -> None:
    runbook = rules["engine"]["annotations"]["runbook_url"]
    assert runbook == "https://runbooks.example/OfAnEngine.md"


def test_a_dashboard_opens_where_the_alert_fires(rules) -> None:
    assert rules["engine"]["annotations"]["dashboard_url"] == (
        "https://grafana.example/d/moriio-fleet"
        "?var-job={{ $labels.job | urlquery }}&var-instance={{ $labels.instance | urlquery }}"
        "&var-model={{ $labels.model_name | urlquery }}&var-engine={{ $labels.engine | urlquery }}"
    )


def test_the_dashboard_of_a_fleets_alert_names_no_engine(rules) -> None:
    assert rules["fleet"]["annotations"]["dashboard_url"] == (
        "https://grafana.example/d/moriio-salad-watch"
        "?var-job={{ $labels.job | urlquery }}&var-model={{ $labels.model_name | urlquery }}"
    )


def test_the_dashboard_of_a_canarys_alert_shows_the_engines_of_its_model(rules) -> None:
    assert rules["canary"]["annotations"]["dashboard_url"] == (
        "https://grafana.example/d/moriio-salad-watch"
        "?var-model={{ $labels.model_name | urlquery }}&var-target={{ $labels.target | urlquery }}"
    )


def test_an_engine_that_knows_no_keep_firing_for_gets_none() -> None:
    groups = render_groups(SOURCES, VALUES, keep_firing_for=False)
    assert "keep_firing_for" not in to_yaml(FORMATS["plain"](groups, VALUES))
    assert "keep_firing_for: 5m" in to_yaml(
        FORMATS["plain"](render_groups(SOURCES, VALUES), VALUES)
    )


def test_the_sources_stay_as_they_are() -> None:
    before = copy.deepcopy(SOURCES)
    render_groups(SOURCES, VALUES, keep_firing_for=False)
    assert before == SOURCES


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_the_same_groups(name) -> None:
    groups = render_groups(SOURCES, VALUES)
    document = yaml.safe_load(to_yaml(FORMATS[name](groups, VALUES)))
    assert document.get("spec", document)["groups"] == groups


def test_the_operator_gets_a_resource_that_its_selector_finds() -> None:
    document = FORMATS["prometheusrule"]([], VALUES)
    assert (document["apiVersion"], document["kind"]) == (
        "monitoring.coreos.com/v1",
        "PrometheusRule",
    )
    assert document["metadata"] == {"name": "ours", "labels": {"release": "prom"}}


def test_mimir_gets_a_namespace() -> None:
    assert FORMATS["mimir"]([], VALUES)["namespace"] == "there"


def test_queries_are_written_over_several_lines_as_they_were() -> None:
    text = to_yaml(FORMATS["plain"](render_groups(SOURCES, VALUES), VALUES))
    assert '        sum(x{job="d"})\n      +\n        1\n' in text
