"""Each case of a real report through the doctor's front door."""

from __future__ import annotations

import json
from typing import Any

import pytest

from moriio_observed.cli import main
from tests.unit.doctor.patients import CASES


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Any:
    def ask(*arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
        status = main(["doctor", "--json", *arguments])
        answer = json.loads(capsys.readouterr().out)
        assert answer["exit_status"] == status
        return status, {finding["name"]: finding for finding in answer["findings"]}

    return ask


SEED = (
    '{"kv_connector": "MoRIIOConnector", "kv_role": "kv_consumer",'
    ' "kv_connector_extra_config": {"read_mode": true, "http_port": 8000}}'
)


def test_the_seeds_situation_names_the_hole_the_versions_that_close_it_and_our_setting(
    doctor: Any,
) -> None:
    status, findings = doctor(
        *("--vllm-version", "0.30.0", "--kv-transfer-config", SEED),
        *("--compilation-config", '{"cudagraph_mode": "FULL_AND_PIECEWISE"}'),
    )
    hole = findings["full-graphs-unprotected"]
    assert status == 1
    assert hole["severity"] == "critical"
    assert "nothing waits for the reads of a FULL step on vLLM 0.30.0" in hole["what"]
    assert "0.31 to 0.32 on Model Runner V1 only, and from 0.33 on in every runner" in hole["do"]
    assert "observed.barrier 'auto'" in hole["do"]
    assert "alerts/runbooks/MoriioFullGraphUnprotected.md" in hole["see"]


@pytest.mark.parametrize("version", ["0.28.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"])
def test_read_full_and_piecewise_is_protected_under_auto(doctor: Any, version: str) -> None:
    file = str(CASES / "read-full-and-piecewise.json")
    _, findings = doctor("--vllm-version", version, "--kv-transfer-config", file)
    assert "full-graphs-unprotected" not in findings
    assert findings["full-graphs-protected"]["severity"] == "note"


@pytest.mark.parametrize(
    ("version", "runner", "unprotected"),
    [
        ("0.28.0", "1", True),
        ("0.30.0", "0", True),
        ("0.31.0", "0", False),
        ("0.31.0", "1", True),
        ("0.32.0", "0", False),
        ("0.32.0", "1", True),
        ("0.33.0", "1", False),
    ],
)
def test_read_full_and_piecewise_under_upstream_is_as_the_version_and_runner_have_it(
    doctor: Any, monkeypatch: pytest.MonkeyPatch, version: str, runner: str, unprotected: bool
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", runner)
    monkeypatch.setenv("MORIIO_OBSERVED_BARRIER", "upstream")
    file = str(CASES / "read-full-and-piecewise.json")
    _, findings = doctor("--vllm-version", version, "--kv-transfer-config", file)
    assert ("full-graphs-unprotected" in findings) is unprotected


def test_string_booleans_start_as_write_and_nothing_is_wrong_with_them(doctor: Any) -> None:
    file = str(CASES / "string-booleans.json")
    assert doctor("--vllm-version", "0.32.0", "--kv-transfer-config", file) == (0, {})


def test_a_legacy_variable_is_named_as_ignored_with_the_key_to_set(
    doctor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_MORIIO_CONNECTOR_READ_MODE", "1")
    config = SEED.replace('"read_mode": true, ', "")
    status, findings = doctor("--vllm-version", "0.32.0", "--kv-transfer-config", config)
    found = findings["ignored-variable"]
    assert status == 1
    assert "ignored" in found["what"]
    assert "WRITE" in found["what"]
    assert "kv_connector_extra_config.read_mode" in found["do"]


def test_nested_in_multi_connector_ours_is_found_where_it_stands(doctor: Any) -> None:
    file = str(CASES / "nested-multi.json")
    _, findings = doctor("--vllm-version", "0.32.0", "--kv-transfer-config", file)
    assert "no-moriio-connector" not in findings
    places = findings["lease-shorter-than-reads"]["where"]
    assert places[0]["key"].startswith("kv_connector_extra_config.connectors[0].")


def test_misspelt_settings_are_all_named_with_what_was_meant(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor", "--kv-transfer-config", str(CASES / "misspelt.json"), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    refused = [found for found in answer["findings"] if found["name"] == "refused-setting"]
    assert [found["where"][0] for found in refused] == [
        {"key": "kv_connector_extra_config.observed.barier", "value": "'layer'"},
        {"key": "kv_connector_extra_config.observed.otlp.sample_ratio", "value": "1.5"},
    ]
    assert "did you mean barrier?" in refused[0]["what"]
    assert "0 to 1" in refused[1]["what"]


def test_decode_stall_is_a_hung_read_that_ran_into_the_deadline_then_the_abort(doctor: Any) -> None:
    status, findings = doctor("--log", str(CASES / "decode-stall.log"))
    [found] = findings.values()
    places = {place["key"]: place["value"] for place in found["where"]}
    assert status == 1
    assert "a hung read ran into the barrier's deadline, then into the abort" in found["what"]
    assert "3 x a layer's barrier gave up, 1 x a request's reads were given up" in found["what"]
    assert places["layers"] == "model.layers.17.self_attn.attn"
    assert places["requests"] == "cmpl-7f1c-0-91ab"
    assert places["ranks"] == "TP3"
    assert (places["first"], places["last"]) == ("08-12 09:20:44", "08-12 09:22:14")
    assert found["see"][0] == "alerts/runbooks/MoriioBarrierTimeouts.md"
