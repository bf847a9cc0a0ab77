"""Making our connector known to vLLM by name, without importing it before it is needed."""

from __future__ import annotations

from typing import Any

CONNECTOR = "ObservedMoRIIOConnector"


def register(name: str = CONNECTOR) -> None:
    """Let vLLM find our connector class under `name`, whatever stood there before.

    vLLM looks classes up by name when statistics of several connectors are put together, so
    being loaded by module path is not enough.
    """
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    def load() -> Any:
        from moriio_observed.connector import ObservedMoRIIOConnector

        return ObservedMoRIIOConnector

    KVConnectorFactory._registry[name] = load
