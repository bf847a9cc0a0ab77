"""Sides of a comparison, and rounds that alternate between them."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from moriio_observed import loopback

loopback.activate({"MORIIO_OBSERVED_LOOPBACK": "auto"})

from vllm.forward_context import override_forward_context  # noqa: E402

from tests.unit.fakes import FakeStatus  # noqa: E402
from tests.unit.scripted import Decode, Session, layer_names  # noqa: E402

__all__ = [
    "LAYERS",
    "REQUESTS",
    "ROUNDS",
    "alternating",
    "idle_step",
    "reading_step",
    "step_that_loads_first",
]

LAYERS = 61
REQUESTS = 8
"""That read in the same step."""
ROUNDS = 200


def alternating(sides: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each side in each round; in every round they come in another order."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides.items())
    shuffle = random.Random(7).shuffle  # noqa: S311  (the same order in every run)
    for _ in range(rounds):
        # What came before decides what is in the caches.
        shuffle(order)
        for name, run in order:
            started = time.perf_counter()
            run()
            samples[name].append(time.perf_counter() - started)
    return samples


def idle_step(decode: Decode, layers: int = LAYERS) -> Callable[[], Any]:
    """The hooks of one step in which no read is in flight, in the order of a model runner."""
    connector = decode.connector
    names = layer_names(layers)
    # No read is due, so vLLM from 0.29 on starts loads after the forward.
    metadata = decode.metadata((), ["r"], loads_first=False)
    mode = decode.config.compilation_config.cudagraph_mode
    context = SimpleNamespace(attn_metadata={}, cudagraph_runtime_mode=mode)
    results = getattr(connector, "get_transfer_results", connector.get_finished)
    nobody: set[str] = set()

    def step() -> Any:
        with override_forward_context(context):
            connector.bind_connector_metadata(metadata)
            for name in names:
                connector.wait_for_layer_load(name)
                connector.save_kv_layer(name, None, None)
            connector.start_load_kv(context)
            results(nobody)
            connector.get_block_ids_with_load_errors()
            stats = connector.get_kv_connector_stats()
            connector.clear_connector_metadata()
        return stats

    return step


class Landed(Session):
    """Posts reads that have landed by the time somebody looks."""

    def batch_read(self, *_: object) -> FakeStatus:
        """Post one read."""
        status = FakeStatus()
        status.land()
        return status


def step_that_loads_first(connector: Any, metadata: Any, context: Any, names: list[str]) -> Any:
    """Run the hooks of a step whose loads begin before its forward; gives its statistics."""
    results = getattr(connector, "get_transfer_results", connector.get_finished)
    with override_forward_context(context):
        connector.bind_connector_metadata(metadata)
        connector.start_load_kv(context)
        for name in names:
            connector.wait_for_layer_load(name)
            connector.save_kv_layer(name, None, None)
        results(set())
        connector.get_block_ids_with_load_errors()
        stats = connector.get_kv_connector_stats()
        connector.clear_connector_metadata()
    return stats


def reading_step(decode: Decode) -> Callable[[], Any]:
    """The hooks of one step that reads for some requests, each layer's among them."""
    connector = decode.connector
    decode.worker.session = Landed()
    names = layer_names(LAYERS)
    mode = decode.config.compilation_config.cudagraph_mode
    context = SimpleNamespace(attn_metadata={}, cudagraph_runtime_mode=mode)
    numbers = itertools.count()

    def step() -> Any:
        # Else the stand-in for the network keeps what is sent for ever.
        decode.sent.clear()
        requests = [f"r{next(numbers)}" for _ in range(REQUESTS)]
        metadata = decode.metadata(requests, requests)
        return step_that_loads_first(connector, metadata, context, names)

    return step
