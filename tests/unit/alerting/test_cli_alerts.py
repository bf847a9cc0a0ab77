import argparse
import shutil
from pathlib import Path

import pytest
import yaml

from moriio_observed.alerting.errors import AlertsError
from moriio_observed.cli import alerts
from tests.tools import needs

SHIPPED = Path(__file__).parents[3] / "alerts"
FIRES = """\
rule_files: [elsewhere.yaml]
evaluation_interval: 15s
tests:
  - name: MoriioRecvAborts fires
    interval: 15s
    input_series:
      - series: 'moriio_reads_aborted_total{job="d", instance="d1", model_name="m", engine="0"}'
        values: '0x20 4x60'
    promql_expr_test:
      - expr: count by (alertname) (ALERTS{alertstate="firing"})
        eval_time: 6m
        exp_samples:
          - labels: '{alertname="MoriioRecvAborts"}'
            value: 1
"""


@pytest.fixture
def copy(tmp_path) -> Path:
    """A user's own copy of our rules."""
    return Path(shutil.copytree(SHIPPED, tmp_path / "alerts"))


@pytest.fixture
def quick(copy) -> Path:
    """A copy with one short test."""
    shutil.rmtree(copy / "tests")
    (copy / "tests").mkdir()
    (copy / "tests" / "one.yaml").write_text(FIRES)
    return copy


@pytest.fixture
def mine(tmp_path):
    def write(**sections: dict) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump(sections))
        return path

    return write


def run(*words: str | Path) -> int:
    parser = argparse.ArgumentParser()
    alerts.add_arguments(parser)
    return alerts.run(parser.parse_args([str(word) for word in words]))


def test_rendering_takes_the_users_values(copy, mine, capsys) -> None:
    own = mine(selectors={"engines": 'job="mine"'}, thresholds={"reads_aborted": 41})
    assert run("render", "--dir", copy, "--values", own) == 0
    rules = {
        rule.get("alert"): rule
        for group in yaml.safe_load(capsys.readouterr().out)["groups"]
        for rule in group["rules"]
    }
    expr = rules["MoriioRecvAborts"]["expr"]
    assert 'moriio_reads_aborted_total{job="mine"}' in expr
    assert "> 41" in expr


def test_rendering_writes_the_file_it_is_told_to(copy, tmp_path, capsys) -> None:
    out = tmp_path / "rules.yaml"
    assert run("render", "--dir", copy, "--format", "prometheusrule", "--out", out) == 0
    assert yaml.safe_load(out.read_text())["kind"] == "PrometheusRule"
    assert capsys.readouterr().out == ""


def test_old_engines_get_no_keep_firing_for(copy, capsys) -> None:
    run("render", "--dir", copy, "--no-keep-firing-for")
    assert "keep_firing_for" not in capsys.readouterr().out


def test_our_own_rules_are_well(copy, capsys) -> None:
    assert run("check", "--dir", copy) == 0
    assert capsys.readouterr().err.strip() in (
        "",
        "promtool is not installed: its own checks were left out",
    )


def test_a_check_names_the_rule_and_what_is_wrong_with_it(copy, capsys) -> None:
    rules = copy / "alerts" / "reads.yaml"
    rules.write_text(rules.read_text().replace("moriio_reads_aborted_total", "moriio_gone_total"))
    assert run("check", "--dir", copy) == 1
    assert "MoriioRecvAborts: nobody exposes moriio_gone_total" in capsys.readouterr().err


def test_without_promtool_a_check_goes_as_far_as_it_can(copy, capsys, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert run("check", "--dir", copy) == 0
    assert "promtool is not installed" in capsys.readouterr().err


def test_without_promtool_nothing_is_tested(quick, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(AlertsError, match="promtool is not installed"):
        run("test", "--dir", quick)


@needs("promtool")
def test_tests_pass_with_the_users_selectors(quick, mine, capsys) -> None:
    own = mine(selectors={"engines": 'job="mine"'})
    assert run("test", "--dir", quick, "--values", own) == 0
    assert "SUCCESS" in capsys.readouterr().out


@needs("promtool")
def test_tests_tell_that_the_users_threshold_is_out_of_their_reach(quick, mine, capsys) -> None:
    own = mine(thresholds={"reads_aborted": 1000})
    assert run("test", "--dir", quick, "--values", own) == 1
    assert "MoriioRecvAborts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("broken", "text", "says"),
    [
        ("values.yaml", "a: [", "values.yaml is no YAML"),
        ("rules/reads.yaml", "rules: []", "reads.yaml has no groups"),
        ("rules/reads.yaml", "", "reads.yaml has no groups"),
        ("rules/reads.yaml", "groups: [{name: g}]", "reads.yaml: a group has a name and a list"),
        ("rules/reads.yaml", "groups: [{name: g, rules: [7]}]", "reads.yaml: a rule has an alert"),
        ("rules/reads.yaml", "groups: [{rules: [{alert: A}]}]", "reads.yaml: A has no expr"),
        ("rules/reads.yaml", "groups: [{rules: [{alert: A, expr: x}]}]", "A has no annotations"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(copy, broken, text, says) -> None:
    (copy / broken).write_text(text)
    with pytest.raises(AlertsError, match=says):
        run("render", "--dir", copy)


def test_a_file_of_tests_without_any_is_named(copy) -> None:
    (copy / "tests" / "burn.yaml").write_text("rule_files: [rules.yaml]")
    with pytest.raises(AlertsError, match=r"burn.yaml has no tests"):
        run("check", "--dir", copy)


def test_a_test_without_a_name_is_nobodys(copy) -> None:
    (copy / "tests" / "mine.yaml").write_text("tests: [{input_series: []}]")
    assert run("check", "--dir", copy) == 0


def test_values_that_cannot_be_used_are_named_with_their_file(copy, tmp_path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("thresholds: {peer: 4}")
    with pytest.raises(AlertsError, match=r"mine.yaml: thresholds.peer \(4\) is no value"):
        run("render", "--dir", copy, "--values", own)


def test_values_that_are_no_text_are_named(copy, tmp_path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_bytes(b"\xff\xfe")
    with pytest.raises(AlertsError, match=r"mine.yaml is no text in UTF-8"):
        run("render", "--dir", copy, "--values", own)


def test_a_folder_without_rules_is_named(tmp_path) -> None:
    (tmp_path / "values.yaml").write_text("a: {b: 1}")
    with pytest.raises(AlertsError, match=r"has no rules: name the folder with --dir"):
        run("render", "--dir", tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path) -> None:
    with pytest.raises(AlertsError, match=r"values.yaml cannot be read"):
        run("render", "--dir", tmp_path / "none")
