"""A connector each of whose TP ranks has a fault file of its own."""

from __future__ import annotations

import os
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

from moriio_observed.connector import ObservedMoRIIOConnector
from moriio_observed.loopback.engine import FAULTS_VARIABLE


class RankFaultsConnector(ObservedMoRIIOConnector):
    """Puts the TP rank in the place of `{}` in the fault file's name."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        if role is KVConnectorRole.WORKER:
            rank = get_tensor_model_parallel_rank()
            os.environ[FAULTS_VARIABLE] = os.environ[FAULTS_VARIABLE].format(rank)
        super().__init__(vllm_config, role, kv_cache_config)
