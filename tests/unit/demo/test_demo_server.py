import json
from pathlib import Path

from moriio_observed.demo.server import (
    BARE,
    Place,
    Ports,
    ServerSettings,
    command,
    environment,
    transfer_config,
    with_ports,
)

PORTS = Ports(http=8300, handshake=7301, notify=6205)
PLACE = Place(Path("/b"), Path("/b/model"), Path("/b/faults.json"))


def transfer_flag(settings):
    line = command(settings, PLACE, PORTS)
    return json.loads(line[line.index("--kv-transfer-config") + 1])


def test_the_transfer_config_names_our_connector_its_role_and_read_mode():
    config = transfer_flag(ServerSettings(transfer_config("kv_consumer")))
    assert config["kv_connector"] == "ObservedMoRIIOConnector"
    assert config["kv_connector_module_path"] == "moriio_observed.connector"
    assert config["kv_role"] == "kv_consumer"
    assert config["kv_load_failure_policy"] == "recompute"
    assert config["kv_connector_extra_config"]["read_mode"] is True
    assert config["kv_connector_extra_config"]["host_ip"] == "127.0.0.1"


def test_the_bare_connector_has_no_module_path():
    config = transfer_config("kv_producer", connector=BARE)
    assert config["kv_connector"] == "MoRIIOConnector"
    assert "kv_connector_module_path" not in config


def test_our_settings_go_under_observed_and_only_when_there_are_any():
    bare = transfer_config("kv_consumer")
    off = transfer_config("kv_consumer", observed={"barrier": "off"})
    assert "observed" not in bare["kv_connector_extra_config"]
    assert off["kv_connector_extra_config"]["observed"] == {"barrier": "off"}


def test_extra_keys_win_over_the_defaults():
    config = transfer_config("kv_consumer", transfer_timeout=30)
    assert config["kv_connector_extra_config"]["transfer_timeout"] == 30
    assert config["kv_connector_extra_config"]["recv_abort_timeout"] == 6


def test_ports_are_filled_in_at_any_depth():
    nested = {"kv_connector": "MultiConnector", "connectors": [transfer_config("kv_consumer")]}
    [inner] = with_ports(nested, PORTS)["connectors"]
    extra = inner["kv_connector_extra_config"]
    assert (extra["http_port"], extra["handshake_port"], extra["notify_port"]) == (8300, 7301, 6205)


def test_filling_in_ports_leaves_the_settings_alone():
    config = transfer_config("kv_consumer")
    with_ports(config, PORTS)
    assert config == transfer_config("kv_consumer")


def test_a_plain_server_has_no_transfer_config():
    assert "--kv-transfer-config" not in command(ServerSettings(), PLACE, PORTS)


def test_a_server_listens_on_the_loopback_address_only():
    line = command(ServerSettings(), PLACE, PORTS)
    assert line[line.index("--host") + 1] == "127.0.0.1"
    assert line[line.index("--port") + 1] == "8300"


def test_a_server_is_offline_on_one_core_and_has_the_loopback():
    env = environment(ServerSettings(), PLACE, core=1)
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "1"
    assert env["HF_HUB_OFFLINE"] == "1"
    assert env["MORIIO_OBSERVED_LOOPBACK"] == "1"
    assert env["MORIIO_OBSERVED_LOOPBACK_FAULTS"] == "/b/faults.json"
    assert env["VLLM_CACHE_ROOT"] == "/b/vllm-cache"


def test_the_settings_environment_wins():
    env = environment(ServerSettings(env={"HF_HUB_OFFLINE": "0"}), PLACE, core=0)
    assert env["HF_HUB_OFFLINE"] == "0"


def test_another_vllm_comes_first_on_the_path(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    env = environment(ServerSettings(vllm_tree=Path("/trees/0.30.0")), PLACE, core=0)
    assert env["PYTHONPATH"] == "/trees/0.30.0:/mine"


def test_another_vllm_gets_the_abort_limit_the_old_way_too():
    settings = ServerSettings(
        transfer_config("kv_consumer", recv_abort_timeout=6), vllm_tree=Path("/trees/0.30.0")
    )
    assert environment(settings, PLACE, core=0)["VLLM_MORIIO_TRANSFER_TIMEOUT_S"] == "6"


def test_all_workers_of_a_server_share_its_core():
    one = environment(ServerSettings(), PLACE, core=1)
    two = environment(ServerSettings(workers=2), PLACE, core=1)
    assert one["VLLM_CPU_OMP_THREADS_BIND"] == "1"
    assert two["VLLM_CPU_OMP_THREADS_BIND"] == "1|1"


def test_another_module_can_be_started_in_place_of_the_api_server():
    line = command(ServerSettings(module="tests.other"), PLACE, PORTS)
    assert line[1:3] == ["-m", "tests.other"]
