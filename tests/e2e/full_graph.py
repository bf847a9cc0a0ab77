"""A connector whose every forward looks to it as a replayed FULL CUDA graph does.

The CPU has no CUDA graphs: the mode is put into the forward context and no layer hook is called,
which is what a replay under Model Runner V1 looks like from inside a connector.
"""

from __future__ import annotations

from typing import Any

from vllm.config import CUDAGraphMode

from moriio_observed.connector import ObservedMoRIIOConnector


class FullGraphConnector(ObservedMoRIIOConnector):
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        forward_context.cudagraph_runtime_mode = CUDAGraphMode.FULL
        super().start_load_kv(forward_context, **kwargs)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """A replay runs no Python between layers."""
