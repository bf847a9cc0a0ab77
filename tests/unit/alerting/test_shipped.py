"""The rules that we ship."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from moriio_observed.alerting import conventions, promtool
from moriio_observed.alerting.folder import Folder
from moriio_observed.alerting.formats import plain
from moriio_observed.alerting.queries import Queries, instrument_of
from moriio_observed.alerting.rules import alerts_of, render_groups, rules_of
from moriio_observed.alerting.yaml_text import to_yaml
from tests.tools import needs

ROOT = Path(__file__).parents[3]
FOLDER = Folder(ROOT / "alerts")
VALUES = FOLDER.values()

PAGES = {
    "MoriioBarrierTimeouts",
    "MoriioCanaryFailing",
    "MoriioExposureBudgetBurnFast",
    "MoriioPeerFailures",
    "MoriioPhantomHits",
    "MoriioReadsFailing",
    "MoriioReadsStuck",
    "MoriioStepStalled",
    "MoriioUnprotectedSteps",
}
TICKETS = {
    "MoriioBarrierWaitHigh",
    "MoriioCanaryNoVerdict",
    "MoriioCanaryNotRunning",
    "MoriioCanaryOutdated",
    "MoriioDeferredSendsExpired",
    "MoriioDeferredSendsPilingUp",
    "MoriioExposureBudgetBurnSlow",
    "MoriioFullGraphUnprotected",
    "MoriioHandshakeFailures",
    "MoriioHookMissing",
    "MoriioLateLandings",
    "MoriioLoadErrorRecomputes",
    "MoriioNotifyFailures",
    "MoriioQuarantineExpired",
    "MoriioRankSlow",
    "MoriioReadsFailingTrickle",
    "MoriioRecvAborts",
    "MoriioRemoteSlow",
    "MoriioSendQueueFull",
    "MoriioStaleReads",
    "MoriioTelemetryAbsent",
    "MoriioTelemetryDropped",
    "MoriioTelemetryErrors",
    "MoriioUnprotectedStepsPossible",
}


@pytest.fixture(scope="module")
def groups():
    return render_groups(FOLDER.sources(), VALUES)


@pytest.mark.parametrize(("severity", "names"), [("page", PAGES), ("ticket", TICKETS)])
def test_what_pages_and_what_tickets(groups, severity, names) -> None:
    assert {
        rule["alert"] for rule in alerts_of(groups) if rule["labels"]["severity"] == severity
    } == names


def test_metrics_labels_and_conventions_are_right() -> None:
    assert list(conventions.problems(FOLDER.sources(), VALUES)) == []


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_must_not(groups) -> None:
    assert list(conventions.untested(groups, FOLDER.tests())) == []


def test_every_series_of_the_tests_is_one_that_somebody_exposes() -> None:
    queries = Queries(frozenset({"job", "instance"}), {})
    for file in FOLDER.tests().values():
        for case in file["tests"]:
            for series in case["input_series"]:
                queries.labels(series["series"])
    assert queries.problems == []


def test_nothing_but_the_catalogue_and_one_gauge_of_vllms_is_asked_for(groups) -> None:
    recorded = {rule["record"]: rule["expr"] for rule in rules_of(groups) if "record" in rule}
    queries = Queries(frozenset({"job", "instance"}), recorded)
    asked = {name for rule in rules_of(groups) for name in queries.metrics(rule["expr"])}
    foreign = {name for name in asked - set(recorded) if instrument_of(name) is None}
    assert foreign == {"vllm:num_requests_running"}


def test_no_rule_reads_more_than_an_hour_of_every_engines_series(groups) -> None:
    raw = re.compile(r"moriio_\w+\{[^}]*\}\[(\w+)\]")
    windows = {window for rule in rules_of(groups) for window in raw.findall(rule["expr"])}
    assert windows == {"1m", "5m", "15m", "1h"}


def test_every_threshold_has_its_reason_beside_it() -> None:
    lines = (FOLDER.path / "values.yaml").read_text().splitlines()
    start = lines.index("thresholds:") + 1
    paragraphs = "\n".join(lines[start:]).split("\n\n")
    assert [paragraph for paragraph in paragraphs if "#" not in paragraph] == []


@needs("promtool")
@pytest.mark.parametrize("keep_firing_for", [True, False])
def test_promtool_has_nothing_to_complain_about(keep_firing_for) -> None:
    rendered = render_groups(FOLDER.sources(), VALUES, keep_firing_for=keep_firing_for)
    passed, said = promtool.check(rendered)
    assert passed, said


@needs("promtool")
@pytest.mark.parametrize("file", sorted(FOLDER.tests()))
def test_the_rules_do_what_their_tests_say(groups, file) -> None:
    passed, said = promtool.test(groups, {file: FOLDER.tests()[file]})
    assert passed, said


@needs("promtool")
def test_labels_of_a_users_own_go_through_every_rule(tmp_path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text(
        yaml.safe_dump(
            {
                "selectors": dict.fromkeys(VALUES["selectors"], 'namespace="prod"'),
                "labels": {
                    "engine": "cluster, namespace, job, instance, model_name, engine",
                    "fleet": "cluster, namespace, job, model_name",
                    "canary": "cluster, namespace, job, model_name, target",
                },
            }
        )
    )
    values = FOLDER.values(own)
    assert list(conventions.problems(FOLDER.sources(), values)) == []
    passed, said = promtool.check(render_groups(FOLDER.sources(), values))
    assert passed, said


@needs("vmalert")
def test_another_engine_takes_the_rules(tmp_path) -> None:
    rules = tmp_path / "rules.yaml"
    groups = render_groups(FOLDER.sources(), VALUES, keep_firing_for=False)
    rules.write_text(to_yaml(plain(groups, VALUES)))
    done = subprocess.run(
        ["vmalert", "-dryRun", f"-rule={rules}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
