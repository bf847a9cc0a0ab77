"""Sides of a comparison, and rounds that alternate between them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace

from moriio_observed import loopback

loopback.activate({"MORIIO_OBSERVED_LOOPBACK": "auto"})

from vllm.forward_context import override_forward_context  # noqa: E402

from tests.unit.scripted import Decode, layer_names  # noqa: E402

LAYERS = 61
ROUNDS = 200


def median_seconds(sides: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Median seconds of each side, measured in alternating rounds."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            started = time.perf_counter()
            run()
            samples[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in samples.items()}


def idle_step(decode: Decode) -> Callable[[], None]:
    """The hooks of one step in which no read is in flight, in the order of a model runner."""
    connector = decode.connector
    names = layer_names(LAYERS)
    metadata = decode.metadata((), ["r"], loads_first=False)
    mode = decode.config.compilation_config.cudagraph_mode
    context = SimpleNamespace(attn_metadata={}, cudagraph_runtime_mode=mode)
    results = getattr(connector, "get_transfer_results", connector.get_finished)
    nobody: set[str] = set()

    def step() -> None:
        with override_forward_context(context):
            connector.bind_connector_metadata(metadata)
            for name in names:
                connector.wait_for_layer_load(name)
            connector.start_load_kv(context)
            results(nobody)
            connector.get_block_ids_with_load_errors()
            connector.get_kv_connector_stats()
            connector.clear_connector_metadata()

    return step
