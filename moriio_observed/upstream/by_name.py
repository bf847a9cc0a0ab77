"""What vLLM decides by the name ``MoRIIOConnector``, which ours has on one of its two ways in."""

from __future__ import annotations

import copy
from typing import Any


def check(vllm_config: Any) -> None:
    """Let vLLM check the configuration as if our connector had upstream's name.

    From 0.31 it refuses ``--enable-return-routed-experts`` with MoRIIOConnector, by that name.

    Raises:
        ValueError: vLLM's own refusal.
    """
    if not hasattr(vllm_config, "_verify_aux_output_compatibility"):
        return
    named = copy.copy(vllm_config)
    named.kv_transfer_config = copy.copy(vllm_config.kv_transfer_config)
    named.kv_transfer_config.kv_connector = "MoRIIOConnector"
    named._verify_aux_output_compatibility()
