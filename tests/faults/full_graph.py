"""Connectors whose every forward looks to them as a replayed FULL CUDA graph of Model Runner V2.

The CPU has no CUDA graphs. That runner, the default for CUDA, calls `start_load_kv` outside any
forward context and hands the attention metadata in; no layer hook runs on replay.
"""

from __future__ import annotations

from typing import Any

from moriio_observed.connector import ObservedMoRIIOConnector
from moriio_observed.upstream import MoRIIOConnector


class BareFullGraphConnector(MoRIIOConnector):
    """Upstream's connector so."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        start_as_replayed(super().start_load_kv, forward_context, kwargs)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """A replay runs no Python between layers."""


class ObservedFullGraphConnector(ObservedMoRIIOConnector):
    """Our connector so."""

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        start_as_replayed(super().start_load_kv, forward_context, kwargs)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """A replay runs no Python between layers."""


def start_as_replayed(start: Any, forward_context: Any, kwargs: dict[str, Any]) -> None:
    """Call `start_load_kv` with the attention metadata where that runner has it."""
    metadata = forward_context.attn_metadata
    forward_context.attn_metadata = None
    try:
        start(forward_context, **(kwargs | {"attn_metadata": metadata}))
    finally:
        forward_context.attn_metadata = metadata
