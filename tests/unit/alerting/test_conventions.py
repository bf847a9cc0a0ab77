import copy

import pytest

from moriio_observed.alerting import conventions

VALUES = {
    "labels": {"engine": "job, instance, model_name, engine", "fleet": "job, model_name"},
    "links": {"runbooks": "r", "dashboards": "d"},
    "resource": {"name": "n", "release": "r", "namespace": "n"},
    "thresholds": {"steps": 0},
}
ALERT = {
    "alert": "A",
    "expr": "sum by (${labels.engine}) (moriio_requests_total) > ${thresholds.steps}",
    "for": "0m",
    "keep_firing_for": "5m",
    "labels": {"severity": "page", "incident": "reads", "kind": "symptom"},
    "annotations": {
        "summary": "{{ $labels.instance }}, a {{ $labels.severity }}",
        "description": "{{ $value }}",
        "dashboard": "fleet",
    },
}
RECORDING = {
    "record": "fleet:moriio_requests:sum",
    "expr": "sum by (${labels.fleet}) (moriio_requests_total)",
}


def problems(*rules, values=VALUES) -> list[str]:
    return list(conventions.problems([{"name": "g", "rules": [*rules]}], values))


def changed(path: str, value: object) -> dict:
    alert = copy.deepcopy(ALERT)
    *parents, last = path.split("/")
    place = alert
    for parent in parents:
        place = place[parent]
    place[last] = value
    return alert


def without(path: str) -> dict:
    alert = copy.deepcopy(ALERT)
    *parents, last = path.split("/")
    place = alert
    for parent in parents:
        place = place[parent]
    del place[last]
    return alert


def test_a_rule_with_all_that_is_asked_is_well() -> None:
    assert problems(ALERT, RECORDING) == []


@pytest.mark.parametrize(
    ("alert", "says"),
    [
        (without("for"), "A: no for"),
        (without("keep_firing_for"), "A: no keep_firing_for"),
        (without("annotations/summary"), "A: no summary"),
        (without("labels/severity"), "A: label severity is one of page, ticket, not None"),
        (changed("labels/severity", "critical"), "A: label severity is one of page, ticket"),
        (changed("labels/incident", "salad"), "A: label incident is one of"),
        (changed("labels/kind", "effect"), "A: label kind is one of"),
        (changed("annotations/dashboard", "none"), "A: dashboard is one of"),
        (changed("annotations/description", "so many"), "A: the description tells no value"),
        (
            changed("annotations/summary", "{{ $labels.tp_rank }}"),
            "A: annotations name labels the query does not return: tp_rank",
        ),
        (changed("expr", "moriio_none > ${thresholds.steps} + ${labels.engine}"), "A: "),
    ],
)
def test_what_an_alert_lacks_is_told(alert, says) -> None:
    told = problems(alert, RECORDING)
    assert told
    assert told[0].startswith(says)


@pytest.mark.parametrize("name", ["moriio_requests:sum", "a:b:c", "fleet:x", "fleet:x:y:z"])
def test_a_recording_rule_is_named_level_metric_operations(name) -> None:
    told = problems(ALERT, RECORDING | {"record": name})
    assert told == [
        f"{name}: not level:metric:operations, with a level of canary, engine, fleet, rank, remote"
    ]


def test_a_recording_rule_has_the_labels_of_its_level() -> None:
    told = problems(ALERT, RECORDING | {"record": "engine:moriio_requests:sum"})
    assert told == ["engine:moriio_requests:sum: no label engine, instance at the level engine"]


def test_a_value_that_no_rule_asks_for_is_told() -> None:
    values = {**VALUES, "thresholds": {"steps": 0, "left": 1}}
    assert problems(ALERT, RECORDING, values=values) == [
        "values that no rule asks for: thresholds.left"
    ]


def case(name: str, *fired: str) -> dict:
    samples = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in fired]
    return {"name": name, "promql_expr_test": [{"expr": "ALERTS", "exp_samples": samples}]}


@pytest.mark.parametrize(
    ("cases", "says"),
    [
        ([case("A fires", "A"), case("A is quiet when idle")], []),
        ([case("A is quiet")], ["A: no test in which it fires"]),
        ([case("A fires", "AB"), case("A is quiet", "AB")], ["A: no test in which it fires"]),
        ([case("A fires", "A")], ["A: no test in which it must not fire"]),
        (
            [case("A fires", "A"), case("A is quiet", "A")],
            ["A: fires in a test in which it must not"],
        ),
    ],
)
def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_must_not(cases, says) -> None:
    groups = [{"name": "g", "rules": [ALERT, RECORDING]}]
    assert list(conventions.untested(groups, {"t.yaml": {"tests": cases}})) == says
