"""What this version's vLLM does by the name MoRIIOConnector, with ours in its place.

With `MORIIO_OBSERVED=1` our class stands under upstream's name, so that what vLLM decides by the
name it decides for ours as for upstream's. Loaded by module path it has a name vLLM does not know;
what vLLM refuses by the name is then refused when ours is built.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
import vllm
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

from moriio_observed import loopback, plugin

loopback.activate({"MORIIO_OBSERVED_LOOPBACK": "auto"})

from moriio_observed import upstream  # noqa: E402
from moriio_observed.connector import ObservedMoRIIOConnector  # noqa: E402
from tests.unit.scripted import Decode  # noqa: E402

BY_NAME = {"kv_connector": "MoRIIOConnector"}
BY_MODULE = {
    "kv_connector": "ObservedMoRIIOConnector",
    "kv_connector_module_path": "moriio_observed.connector",
}

ROUTED_EXPERTS = "config/vllm.py"
KIMI_K3 = "models/kimi_k3/amd/specialized_decode/runtime/__init__.py"
has_routed_experts_check = hasattr(VllmConfig, "_verify_aux_output_compatibility")
PACKAGE = Path(vllm.__file__).parent
has_kimi_k3_check = (PACKAGE / KIMI_K3).exists()


@pytest.fixture(autouse=True)
def _ours_under_upstreams_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVConnectorFactory, "_registry", dict(KVConnectorFactory._registry))
    monkeypatch.setenv("MORIIO_OBSERVED", "1")
    plugin.register()


def consumer(way: dict[str, str]) -> KVTransferConfig:
    return KVTransferConfig(kv_role="kv_consumer", **way)


def test_vllm_uses_the_name_in_no_place_that_we_do_not_know() -> None:
    known = {ROUTED_EXPERTS: has_routed_experts_check, KIMI_K3: has_kimi_k3_check}
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if "moriio" not in path.parts and path.name != "factory.py"
        if re.search(r"\bMoRIIOConnector\b", path.read_text())
    }
    assert found == {place for place, is_there in known.items() if is_there}


@pytest.mark.parametrize("way", [BY_NAME, BY_MODULE], ids=["by name", "by module path"])
def test_vllms_factory_builds_ours_either_way(
    way: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def create(config: Any, role: Any, kv_cache_config: Any) -> Any:
        given = config.kv_transfer_config
        config.kv_transfer_config = KVTransferConfig(
            kv_role=given.kv_role,
            kv_load_failure_policy=given.kv_load_failure_policy,
            kv_connector_extra_config=given.kv_connector_extra_config,
            **way,
        )
        config.scheduler_config = SimpleNamespace(disable_hybrid_kv_cache_manager=True)
        return KVConnectorFactory.create_connector(config, role, kv_cache_config)

    d = Decode(monkeypatch, connector=create)  # type: ignore[arg-type]
    assert type(d.connector) is ObservedMoRIIOConnector
    assert KVConnectorFactory.get_connector_class(d.config.kv_transfer_config) is type(d.connector)
    d.connector.shutdown()


def test_hybrid_models_are_supported_as_far_as_upstream_supports_them() -> None:
    """vLLM asks the class, not the name."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import base

    assert base.supports_hma(ObservedMoRIIOConnector) is base.supports_hma(upstream.MoRIIOConnector)


def child(way: dict[str, str]) -> Any:
    """Ours as the child of a MultiConnector."""
    return {
        "kv_connector": "MultiConnector",
        "kv_connector_extra_config": {"connectors": [{"kv_role": "kv_consumer", **way}]},
    }


class ReturnsRoutedExperts(VllmConfig):
    """A configuration that returns routed experts, as far as vLLM's check of it looks."""

    use_v2_model_runner = True

    def __init__(self, way: Any) -> None:
        self.aux_output_config = SimpleNamespace(enabled=True)
        self.model_config = SimpleNamespace(runner_type="generate", is_moe=True)
        self.cache_config = SimpleNamespace(enable_prefix_caching=True)
        self.speculative_config = None
        sizes = ("pipeline", "decode_context", "prefill_context")
        self.parallel_config = SimpleNamespace(**{f"{size}_parallel_size": 1 for size in sizes})
        self.scheduler_config = SimpleNamespace(disable_hybrid_kv_cache_manager=True)
        self.kv_transfer_config = None if way is None else consumer(way)


def check(way: Any) -> None:
    """vLLM's own check of the configuration."""
    ReturnsRoutedExperts(way)._verify_aux_output_compatibility()


def build(way: Any) -> None:
    """vLLM builds the connector."""
    KVConnectorFactory.create_connector(
        ReturnsRoutedExperts(way), KVConnectorRole.SCHEDULER, MagicMock()
    )


@pytest.mark.skipif(not has_routed_experts_check, reason="no such check in this version")
class TestRoutedExperts:
    @pytest.mark.parametrize("way", [BY_NAME, child(BY_NAME)], ids=["alone", "child"])
    def test_are_refused_for_ours_under_upstreams_name(self, way: Any) -> None:
        check(None)
        with pytest.raises(ValueError, match="incompatible with MoRIIOConnector"):
            check(way)

    @pytest.mark.parametrize("way", [BY_MODULE, child(BY_MODULE)], ids=["alone", "child"])
    def test_are_refused_by_module_path_when_ours_is_built(self, way: Any) -> None:
        check(way)
        with pytest.raises(ValueError, match="incompatible with MoRIIOConnector"):
            build(way)


def kimi_k3(way: dict[str, str] | None) -> list[str]:
    """Why vLLM's specialised decode of Kimi-K3 does not run with a connector."""
    runtime = importlib.import_module("vllm.models.kimi_k3.amd.specialized_decode.runtime")
    config = MagicMock()
    config.model_config.dtype = torch.bfloat16
    config.cache_config.mamba_cache_dtype = "auto"
    config.speculative_config = None
    config.offload_config.uva.cpu_offload_gb = 0
    config.offload_config.prefetch.offload_group_size = 0
    config.model_config.hf_text_config.linear_attn_config = {}
    config.kv_transfer_config = None if way is None else consumer(way)
    reasons: list[str] = runtime.unsupported(config)
    return [reason for reason in reasons if "KV transfer" in reason]


@pytest.mark.skipif(not has_kimi_k3_check, reason="no such check in this version")
class TestKimiK3SpecialisedDecode:
    def test_runs_with_ours_under_upstreams_name(self) -> None:
        assert kimi_k3(BY_NAME) == kimi_k3(None) == []

    def test_is_refused_by_module_path_whatever_the_name(self) -> None:
        refused = ["KV transfer connectors other than a MoRIIO consumer"]
        assert kimi_k3(BY_MODULE) == refused
        assert kimi_k3(BY_MODULE | BY_NAME) == refused
