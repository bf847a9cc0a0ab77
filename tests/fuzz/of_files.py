"""Ways in for files that users keep: golden answers, values, rules, dashboards."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from moriio_observed.alerting.errors import AlertsError
from moriio_observed.alerting.folder import Folder as Alerts
from moriio_observed.alerting.rules import render_groups
from moriio_observed.canary.answers import from_completion
from moriio_observed.canary.errors import CanaryError, NoAnswerError
from moriio_observed.canary.golden import FORMAT, from_json, read, to_json
from moriio_observed.canary.load import waiting
from moriio_observed.dashboarding.check import problems
from moriio_observed.dashboarding.errors import DashboardsError
from moriio_observed.dashboarding.folder import Folder as Dashboards
from moriio_observed.doctor.checks import of_engines
from moriio_observed.doctor.errors import InputError
from moriio_observed.doctor.inputs import Given, engine_of_command
from tests.fuzz.door import Door, json_of, text_of
from tests.fuzz.of_doctor import DECODE, JSON_WORDS, PAGE, PAGE_WORDS, shown
from tests.fuzz.of_views import room

VALUES = """\
selectors: {engine: 'job="decode"'}
labels: {engine: "job, model_name", fleet: job}
thresholds: {share: 0.5}
links: {runbooks: "http://r", dashboards: "http://g"}
"""
RULES = """\
groups:
  - name: g
    rules:
      - {record: "a:b", expr: "moriio_steps_total{${selectors.engine}} > ${thresholds.share}"}
      - alert: MoriioX
        expr: "a:b > 1"
        for: 5m
        annotations: {summary: s, dashboard: fleet}
"""
QUERIES = 'steps: {expr: "rate(moriio_steps_total{${selectors.engine}}[$__rate_interval])"}\n'
YAML_WORDS = (
    *("!!int ", "!!float ", "!!bool ", "!!timestamp ", "!!binary ", "!!set ", "!!null ", "!!map "),
    *("&a ", "*a", "<<: ", "? ", ": ", "- ", "|\n", "2001-99-99", "0x_", "0b_", "._", ".nan"),
    *("selectors", "labels", "thresholds", "links", "groups:", "rules:", "expr: ", "alert: "),
    *("${selectors.engine}", "record: ", "annotations: ", "legend: ", "[[[[[[[["),
)
DASHBOARD = {
    "uid": "moriio-x",
    "panels": [
        {
            "type": "timeseries",
            "title": "t",
            "datasource": {"uid": "${datasource}"},
            "gridPos": {"h": 8, "w": 12, "x": 0, "y": 0},
            "targets": [{"refId": "A", "expr": "rate(moriio_steps_total[$__rate_interval])"}],
        }
    ],
    "templating": {"list": [{"name": "job", "type": "query", "query": "label_values(a, job)"}]},
    "annotations": {"list": []},
    "links": [],
}
GOLDEN = {
    "format": FORMAT,
    "version": 1,
    "model": "m",
    "mode": "exact",
    "max_tokens": 2,
    "concurrencies": [1],
    "recorded_at": "2026-01-01T00:00:00Z",
    "source": "http://d",
    "asked": 1,
    "prompts": [{"prompt": "p", "text": "t", "tokens": [1, 2], "first_logprob": -0.5}],
}
COMPLETION = {
    "choices": [{"text": "t", "token_ids": [1], "logprobs": {"token_logprobs": [-0.5]}}],
}


@cache
def folder() -> Path:
    """A copy of our `alerts/`, in small."""
    made = room() / "alerts"
    for name, text in (
        ("values.yaml", VALUES),
        ("rules/rules.yaml", RULES),
        ("queries.yaml", QUERIES),
        ("runbooks/MoriioX.md", "# MoriioX"),
    ):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    return made


def _placed(name: str, brought: bytes) -> Path:
    path = room() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(brought)
    return path


def _values(brought: bytes) -> None:
    render_groups(Alerts(folder()).sources(), Alerts(folder()).values(_placed("own.yaml", brought)))


def _rules(brought: bytes) -> None:
    own = _placed("own/rules/rules.yaml", brought).parents[1]
    render_groups(Alerts(own).sources(), Alerts(folder()).values())


def _queries(brought: bytes) -> None:
    own = _placed("asked/queries.yaml", brought).parent
    Dashboards(own, Alerts(own)).queries(Alerts(folder()).values())


def _dashboard(brought: bytes) -> None:
    own = _placed("drawn/json/x.json", brought).parents[1]
    alerts = Alerts(folder())
    assert all(map(str, problems(Dashboards(own, alerts), alerts.values())))


def _options(brought: bytes) -> None:
    file = str(_placed("vllm.yaml", brought))
    words = ("vllm", "serve", "m", "--config", file)
    shown(of_engines([engine_of_command(words, Given({}, version="0.32.0"))]))


def _golden(brought: bytes) -> None:
    golden = read(_placed("golden.json", brought))
    assert from_json(to_json(golden)) == golden


def _completion(brought: bytes) -> None:
    completion = json_of(text_of(brought))
    if isinstance(completion, dict):
        from_completion(completion)


class _OnePage:
    """Instead of the canary's HTTP."""

    def __init__(self, text: str) -> None:
        self._text = text

    def page(self, _url: str) -> str:
        return self._text


def _load(brought: bytes) -> None:
    waiting(_OnePage(text_of(brought)), ["http://d/metrics"])


DOORS = {
    "options-file": Door(
        _options,
        (InputError,),
        (json.dumps({"port": 1, "compilation-config": {}, "kv-transfer-config": DECODE}).encode(),),
        (*YAML_WORDS, "kv_transfer_config.kv_role: ", "no-async-scheduling: ", "O: 3", "config: "),
    ),
    "golden": Door(
        _golden,
        (CanaryError,),
        (json.dumps(GOLDEN).encode(),),
        (*(f'"{key}": ' for key in (*GOLDEN, "tokens", "text")), *JSON_WORDS),
    ),
    "completion": Door(
        _completion,
        (NoAnswerError,),
        (json.dumps(COMPLETION).encode(),),
        ('"token_logprobs": ', '"choices": ', *JSON_WORDS),
    ),
    "load": Door(_load, seeds=(PAGE,), words=PAGE_WORDS),
    "alert-values": Door(_values, (AlertsError,), (VALUES.encode(),), YAML_WORDS),
    "alert-rules": Door(_rules, (AlertsError,), (RULES.encode(),), YAML_WORDS),
    "queries": Door(_queries, (AlertsError, DashboardsError), (QUERIES.encode(),), YAML_WORDS),
    "dashboard": Door(
        _dashboard,
        (DashboardsError,),
        (json.dumps(DASHBOARD).encode(),),
        (*(f'"{key}": ' for key in (*DASHBOARD, *DASHBOARD["panels"][0], "expr")), *JSON_WORDS),
    ),
}
