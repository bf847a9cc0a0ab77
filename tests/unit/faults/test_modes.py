import pytest

from tests.faults.modes import (
    BARE,
    GUARDS,
    INSTALLED,
    MODES,
    Decode,
    decode_settings,
    prefill_settings,
)


def config(mode, kind=Decode.USUAL):
    return decode_settings(mode, INSTALLED, kind).transfer_config


def observed(mode, kind=Decode.USUAL):
    return config(mode, kind)["kv_connector_extra_config"].get("observed")


def test_bare_is_upstreams_own_connector_whatever_the_environment_says():
    settings = decode_settings(BARE, INSTALLED)
    assert settings.transfer_config["kv_connector"] == "MoRIIOConnector"
    assert "kv_connector_module_path" not in settings.transfer_config
    assert "observed" not in settings.transfer_config["kv_connector_extra_config"]
    assert settings.env["MORIIO_OBSERVED"] == "0"


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != BARE])
def test_the_other_modes_are_settings_of_ours(mode):
    assert config(mode)["kv_connector"] == "ObservedMoRIIOConnector"
    assert observed(mode)["guard"] == mode


@pytest.mark.parametrize("mode", MODES)
def test_upstreams_policy_is_the_guard_and_recompute_without_one(mode):
    policy = mode if mode in GUARDS else "recompute"
    assert config(mode)["kv_load_failure_policy"] == policy


def test_where_the_barrier_is_off_ours_say_so_and_bare_upstream_stays_as_it_is():
    assert observed("fail", Decode.BARRIER_OFF)["barrier"] == "off"
    assert config(BARE, Decode.BARRIER_OFF) == config(BARE)


@pytest.mark.parametrize("mode", MODES)
def test_full_graphs_are_emulated_around_the_modes_own_connector(mode):
    kind = "Bare" if mode == BARE else "Observed"
    assert config(mode, Decode.FULL_GRAPHS)["kv_connector"] == f"{kind}FullGraphConnector"


def test_the_installed_version_needs_no_tree():
    assert prefill_settings(INSTALLED).vllm_tree is None
