"""What vLLM's plugin mechanism finds: our connector by name, in each of its processes."""

from __future__ import annotations

import importlib.metadata

import pytest

from moriio_observed import loopback, plugin

loopback.activate({"MORIIO_OBSERVED_LOOPBACK": "auto"})

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # noqa: E402

from moriio_observed.connector import ObservedMoRIIOConnector  # noqa: E402


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVConnectorFactory, "_registry", dict(KVConnectorFactory._registry))
    monkeypatch.delenv("MORIIO_OBSERVED", raising=False)
    monkeypatch.delenv("MORIIO_OBSERVED_LOOPBACK", raising=False)


def found(name: str) -> type:
    return KVConnectorFactory.get_connector_class_by_name(name)


def test_the_entry_point_names_the_plugin() -> None:
    [entry] = [
        entry
        for entry in importlib.metadata.entry_points(group="vllm.general_plugins")
        if entry.name == "moriio_observed"
    ]
    assert entry.load() is plugin.register


def test_our_connector_is_found_by_its_name() -> None:
    del KVConnectorFactory._registry["ObservedMoRIIOConnector"]
    plugin.register()
    assert found("ObservedMoRIIOConnector") is ObservedMoRIIOConnector


def test_upstreams_name_is_left_to_upstream_unless_asked_for() -> None:
    plugin.register()
    assert found("MoRIIOConnector") is not ObservedMoRIIOConnector


def test_asked_for_it_stands_under_upstreams_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MORIIO_OBSERVED", "1")
    plugin.register()
    plugin.register()
    assert found("MoRIIOConnector") is ObservedMoRIIOConnector


def test_another_value_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MORIIO_OBSERVED", "yes")
    with pytest.raises(ValueError, match="MORIIO_OBSERVED='yes': must be 0 or 1"):
        plugin.register()
