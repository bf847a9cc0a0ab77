"""Which connector runs, in which role and mode; keys that nobody reads; our own settings."""

from __future__ import annotations

import pytest

from moriio_observed.doctor.findings import Severity
from tests.unit.doctor.patients import bare, config, engine, matters, only, told


def test_nothing_is_wrong_with_a_sound_configuration() -> None:
    assert matters(engine(config())) == set()
    assert matters(engine(config("kv_producer", defer_timeout=200))) == set()


def test_an_engine_without_moriio_is_named() -> None:
    assert matters(engine({"kv_connector": "NixlConnector", "kv_role": "kv_both"})) == {
        "no-moriio-connector"
    }


def test_vllms_own_connector_is_not_observed() -> None:
    assert "not-observed" in matters(engine(bare()))
    assert "not-observed" not in matters(engine(bare(), MORIIO_OBSERVED="1"))


def test_a_configuration_without_any_connector_is_told_as_such() -> None:
    assert only("no-moriio-connector", told(engine({}))).where[0].value == "not given"


def test_a_misspelt_connector_is_told_with_the_right_name() -> None:
    found = only("unknown-connector", told(engine(config() | {"kv_connector": "MoriioConector"})))
    assert "did you mean MoRIIOConnector?" in found.what


def test_a_missing_module_path_matters() -> None:
    assert "no-module-path" in matters(engine(config() | {"kv_connector_module_path": None}))


def test_a_module_path_that_leads_elsewhere_is_critical() -> None:
    found = only(
        "wrong-module-path",
        told(engine(config() | {"kv_connector_module_path": "moriio_observed"})),
    )
    assert found.severity is Severity.CRITICAL
    assert "moriio_observed.connector" in found.do


@pytest.mark.parametrize("role", [None, "consumer", 3])
def test_a_role_that_vllm_refuses_is_named(role: object) -> None:
    assert "bad-role" in matters(engine(config() | {"kv_role": role}))


def test_kv_both_is_a_prefill_engine_to_moriio() -> None:
    assert "both-roles" in matters(engine(config() | {"kv_role": "kv_both"}))


@pytest.mark.parametrize("value", ["yes", "on", "READ", 1.0, "y", 2, [True], "tru"])
def test_a_read_mode_that_upstream_reads_as_write_is_critical(value: object) -> None:
    found = only("read-mode-is-write", told(engine(config(read_mode=value))))
    assert found.severity is Severity.CRITICAL
    assert found.where[0].key == "kv_connector_extra_config.read_mode"


@pytest.mark.parametrize("value", [True, "true", " True ", "1", 1, False, "false", 0, "no", "off"])
def test_a_read_mode_that_means_what_it_says_is_not_told(value: object) -> None:
    assert "read-mode-is-write" not in matters(engine(config(read_mode=value)))


@pytest.mark.parametrize("name", ["VLLM_MORIIO_QP_PER_TRANSFER", "VLLM_MORIIO_POST_BATCH_SIZE"])
def test_a_variable_of_the_past_is_told(name: str) -> None:
    assert "ignored-variable" in matters(engine(config(), **{name: "4"}))


def test_a_variable_that_meant_read_is_critical_where_the_key_is_not_given() -> None:
    name = "VLLM_MORIIO_CONNECTOR_READ_MODE"
    unset = config()
    del unset["kv_connector_extra_config"]["read_mode"]
    meant = only("ignored-variable", told(engine(unset, **{name: "1"})))
    assert (meant.severity, meant.where[1].value) == (Severity.CRITICAL, "not given")
    assert "= true for READ" in meant.do
    off = only("ignored-variable", told(engine(unset, **{name: "0"})))
    assert off.severity is Severity.WARNING
    given = only("ignored-variable", told(engine(config(), **{name: "1"})))
    assert (given.severity, given.where[1].value) == (Severity.WARNING, "given")
    assert "the mode is WRITE" not in given.what


def test_a_release_nobody_knows_is_told() -> None:
    assert "unknown-release" in matters(engine(config(), version="0.41.0"))
    assert "unknown-release" in matters(engine(config(), version="0.27.0"))
    assert "unknown-release" not in matters(engine(config(), version=None))


def test_a_key_that_vllm_refuses_is_critical_and_told_where_it_belongs() -> None:
    found = only("refused-key", told(engine(config() | {"read_mode": True})))
    assert "kv_connector_extra_config" in found.do
    assert found.what.startswith("vLLM 0.32.0 takes no 'read_mode'")
    misspelt = only("refused-key", told(engine(config() | {"kv_roles": "kv_consumer"})))
    assert misspelt.do == "Did you mean kv_role?"


@pytest.mark.parametrize(("version", "refused"), [("0.31.0", False), ("0.32.0", True)])
def test_keys_of_the_past_are_refused_from_0_32_on(version: str, refused: bool) -> None:
    names = matters(engine(config() | {"kv_rank": 0}, version=version))
    assert ("refused-key" in names) is refused


def test_a_misspelt_key_of_moriio_is_told_because_moriio_says_nothing() -> None:
    found = only("ignored-key", told(engine(config(transfer_timeot=5))))
    assert "did you mean transfer_timeout?" in found.what


def test_another_connectors_key_is_nobodys_business() -> None:
    assert matters(engine(config(shared_storage_path="x"))) == set()


@pytest.mark.parametrize(
    "wrong",
    [
        {"backend": "tcp"},
        {"qp_per_transfer": "many"},
        {"num_workers": 1.5},
        {"transfer_timeout": "soon"},
        {"defer_timeout": 0},
    ],
)
def test_a_value_that_ends_the_start_is_critical(wrong: dict[str, object]) -> None:
    assert "bad-value" in matters(engine(config(**wrong)))


def test_numbers_as_text_are_numbers() -> None:
    sound = config(qp_per_transfer="2", transfer_timeout="20", http_port="8000")
    assert matters(engine(sound)) == set()


def test_an_extra_configuration_that_is_no_mapping_is_named() -> None:
    assert "bad-value" in matters(engine(config() | {"kv_connector_extra_config": [1]}))


def test_a_policy_that_vllm_refuses_is_named() -> None:
    assert "bad-value" in matters(engine(config() | {"kv_load_failure_policy": "retry"}))


def test_every_refused_setting_is_a_finding_of_its_own() -> None:
    findings = told(engine(config(observed={"barier": "step", "guard": "retry"})))
    keys = [found.where[0].key for found in findings if found.name == "refused-setting"]
    prefix = "kv_connector_extra_config.observed"
    assert keys == [f"{prefix}.barier", f"{prefix}.guard"]


def test_a_bad_variable_of_ours_is_told_by_its_name() -> None:
    found = only("refused-setting", told(engine(config(), MORIIO_OBSERVED_BARRIER="stpe")))
    assert found.where[0].key == "MORIIO_OBSERVED_BARRIER"


def test_settings_beside_vllms_own_connector_are_read_by_nobody() -> None:
    assert "settings-unread" in matters(engine(bare(observed={"barrier": "step"})))


def test_a_barrier_that_is_off_is_critical() -> None:
    off = config(observed={"barrier": "off", "allow_unsafe": True})
    assert only("barrier-off", told(engine(off))).severity is Severity.CRITICAL


def test_the_other_way_in_does_nothing_where_our_plugin_is_left_out() -> None:
    names = matters(engine(bare(), MORIIO_OBSERVED="1", VLLM_PLUGINS="a,b"))
    assert "plugin-left-out" in names
    names = matters(engine(bare(), MORIIO_OBSERVED="1", VLLM_PLUGINS="a,moriio_observed"))
    assert "plugin-left-out" not in names


def test_moriio_observed_must_be_0_or_1() -> None:
    assert "bad-variable" in matters(engine(bare(), MORIIO_OBSERVED="yes"))


@pytest.mark.parametrize("options", [{"disable-log-stats": None}, {"disable-log-stats": "true"}])
def test_disable_log_stats_is_told(options: dict[str, str | None]) -> None:
    sound = engine(config(), options=options)
    assert "log-stats-off" in matters(sound)


def test_the_rust_front_end_is_told() -> None:
    assert "rust-front-end" in matters(engine(config(), VLLM_USE_RUST_FRONTEND="1"))
