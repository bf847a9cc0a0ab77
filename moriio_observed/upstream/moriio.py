"""vLLM's MoRIIO package, or one sentence that says why it cannot be used."""

from __future__ import annotations

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio import moriio_common, moriio_connector
    from vllm.distributed.kv_transfer.kv_connector.v1.moriio.moriio_connector import (
        MoRIIOConnector,
    )
    from vllm.forward_context import get_forward_context, is_forward_context_available
except ImportError as error:
    raise ImportError(
        f"moriio_observed cannot use this vLLM's MoRIIO connector: {error}. Use a vLLM that "
        "moriio_observed supports, or go back to kv_connector MoRIIOConnector without "
        "kv_connector_module_path and MORIIO_OBSERVED."
    ) from error

__all__ = [
    "HAS_GROUPS",
    "HAS_TRANSFER_RESULTS",
    "MoRIIOConnector",
    "TransferError",
    "get_forward_context",
    "is_forward_context_available",
    "is_moriios_own",
    "moriio_common",
    "moriio_connector",
]

TransferError: type[Exception] = getattr(moriio_common, "TransferError", RuntimeError)
"""What upstream raises when it fails a step rather than run its forward."""


def is_moriios_own(name: str) -> bool:
    """Whether MoRIIO's connector has a method of its own, beside what every connector has."""
    owner = next((base for base in MoRIIOConnector.__mro__ if name in vars(base)), None)
    return owner is not None and not issubclass(KVConnectorBase_V1, owner)


HAS_GROUPS = hasattr(MoRIIOConnector, "request_finished_all_groups")
"""From 0.30 a request has blocks of several groups."""

HAS_TRANSFER_RESULTS = is_moriios_own("get_transfer_results")
"""Only on 0.33; before, the one that every connector has calls ``get_finished``."""
