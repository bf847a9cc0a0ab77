"""A connector of an engine that has FULL CUDA graphs configured and replays one every step.

The CPU has neither. What the connector sees of a replay is put there step by step; what the API
server is told of the configuration is what it would be; and between the host's posting of reads and
the first attention lies the time that a device is busy with the step before.
"""

from __future__ import annotations

import copy
import time
from typing import Any

from vllm.config import CUDAGraphMode

from moriio_observed.telemetry.vllm_stats import ObservedPromMetrics
from tests.e2e.full_graph import FullGraphConnector as ReplayingConnector

BUSY_S = 0.03
"""A step of a real engine with FULL graphs: upstream's report has 28.97 ms per token."""


class FullGraphConnector(ReplayingConnector):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(_with_full_graphs(vllm_config), role, kv_cache_config)

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> ObservedPromMetrics:
        return super().build_prom_metrics(_with_full_graphs(vllm_config), *args, **kwargs)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        super().start_load_kv(forward_context, **kwargs)
        # The host schedules one step ahead of the device.
        time.sleep(BUSY_S)


def _with_full_graphs(vllm_config: Any) -> Any:
    """The configuration as this connector shall see it; vLLM goes on with its own."""
    seen = copy.copy(vllm_config)
    seen.compilation_config = copy.copy(vllm_config.compilation_config)
    seen.compilation_config.cudagraph_mode = CUDAGraphMode.FULL
    return seen
