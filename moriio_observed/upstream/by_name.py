"""What vLLM decides by the name ``MoRIIOConnector``, which ours has on one of its two ways in."""

from __future__ import annotations

import copy
from typing import Any

from moriio_observed.log import get_logger

logger = get_logger(__name__)


def check(vllm_config: Any) -> None:
    """Let vLLM check the configuration as if our connector had upstream's name.

    From 0.31 it refuses ``--enable-return-routed-experts`` with MoRIIOConnector, by that name.

    Raises:
        ValueError: vLLM's own refusal.
    """
    if not hasattr(vllm_config, "_verify_aux_output_compatibility"):
        return
    try:
        named = copy.copy(vllm_config)
        named.kv_transfer_config = copy.copy(vllm_config.kv_transfer_config)
        named.kv_transfer_config.kv_connector = "MoRIIOConnector"
        named._verify_aux_output_compatibility()
    except ValueError:
        raise
    except Exception as error:  # noqa: BLE001  (another vLLM's check: no reason not to start)
        logger.warning("vLLM's check of what MoRIIOConnector supports cannot be run: %r", error)
