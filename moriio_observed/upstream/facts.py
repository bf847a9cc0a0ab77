"""What vLLM's configuration and its built objects say: deadlines, modes, versions, layers."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moriio_observed.barrier import Era, Placement
from moriio_observed.policy import Policy
from moriio_observed.upstream.moriio import moriio_common


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Upstream's deadlines in force, seconds.

    Attributes:
        transfer_timeout: After which a barrier gives up.
        recv_abort_timeout: After which a read in flight is given up.
        defer_timeout: After which the prefill side frees blocks nobody released.
    """

    transfer_timeout: float
    recv_abort_timeout: float
    defer_timeout: float


def deadlines(extra_config: Mapping[str, Any]) -> Deadlines:
    """Read the deadlines as upstream does: up to 0.30 the abort limit is an environment variable.

    Args:
        extra_config: ``kv_connector_extra_config``.
    """
    constants = getattr(moriio_common, "MoRIIOConstants", None)

    def of(key: str, constant: str, otherwise: float) -> float:
        return float(extra_config.get(key, getattr(constants, constant, otherwise)))

    legacy = os.environ.get("VLLM_MORIIO_TRANSFER_TIMEOUT_S")
    constant = getattr(constants, "DEFAULT_RECV_ABORT_TIMEOUT", None)
    if constant is None:
        abort = float(legacy or 120)
    else:
        abort = float(extra_config.get("recv_abort_timeout", legacy or constant))
    return Deadlines(
        transfer_timeout=of("transfer_timeout", "DEFAULT_TRANSFER_TIMEOUT", 30.0),
        recv_abort_timeout=abort,
        defer_timeout=of("defer_timeout", "DEFAULT_DEFER_TIMEOUT", 60.0),
    )


def mode_name(kv_transfer_config: Any) -> str:
    """Return ``read`` or ``write`` as upstream understands the configuration, else ``unknown``."""
    mode_of = getattr(moriio_common, "get_moriio_mode", None)
    return "unknown" if mode_of is None else str(mode_of(kv_transfer_config).value)


def is_read_consumer(kv_transfer_config: Any) -> bool:
    """Whether this configuration makes a decode engine that pulls KV cache by reads."""
    return mode_name(kv_transfer_config) == "read" and not kv_transfer_config.is_kv_producer


def reads(side: Any) -> bool:
    """Whether upstream's scheduler or worker object is on the side that reads."""
    mode = getattr(getattr(side, "mode", None), "value", None)
    return mode == "read" and not getattr(side, "is_producer", True)


def sends(side: Any) -> bool:
    """Whether upstream's scheduler or worker object is on the side that is read from."""
    mode = getattr(getattr(side, "mode", None), "value", None)
    return mode == "read" and bool(getattr(side, "is_producer", False))


def block_size(vllm_config: Any, kv_cache_config: Any) -> int:
    """Tokens in one block, as the scheduler counts them for a model with one KV cache group."""
    for group in getattr(kv_cache_config, "kv_cache_groups", None) or ():
        return int(group.kv_cache_spec.block_size)
    return int(vllm_config.cache_config.block_size)


def policy(connector: Any, guard: str, vllm_config: Any, kv_cache_config: Any) -> Policy:
    """What a guard means for the engine of a connector that upstream has built."""
    scheduler_config = getattr(vllm_config, "scheduler_config", None)
    groups = getattr(kv_cache_config, "kv_cache_groups", None) or ()
    sides = (getattr(connector, f"connector_{side}", None) for side in ("scheduler", "worker"))
    return Policy(
        guard=guard,
        load_failure=str(vllm_config.kv_transfer_config.kv_load_failure_policy),
        groups=len(groups),
        spread=_spreads_context(vllm_config.parallel_config),
        ahead=bool(getattr(scheduler_config, "async_scheduling", False)),
        repeats_ids=_takes_ids_as_they_are(),
        partial=any(getattr(side, "_has_mamba", False) for side in sides)
        or any(map(_keeps_a_window, groups)),
    )


def _takes_ids_as_they_are() -> bool:
    """Whether vLLM adds nothing of its own to the request ids that clients send."""
    from vllm import envs

    return bool(getattr(envs, "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", False))


def _spreads_context(parallel_config: Any) -> bool:
    """Whether one prompt's KV cache is spread over ranks."""
    names = ("decode_context_parallel_size", "prefill_context_parallel_size")
    return any(int(getattr(parallel_config, name, 1)) > 1 for name in names)


def _keeps_a_window(group: Any) -> bool:
    """Whether a KV cache group keeps only the last tokens, or chunk, of a prompt."""
    kinds = {kind.__name__ for kind in type(group.kv_cache_spec).__mro__}
    return not kinds.isdisjoint(("SlidingWindowSpec", "ChunkedLocalAttentionSpec"))


def cudagraph_mode(vllm_config: Any) -> tuple[str, bool]:
    """Return the configured CUDA graph mode's name and whether it has FULL graphs."""
    mode = getattr(vllm_config.compilation_config, "cudagraph_mode", None)
    if mode is None:
        return "NONE", False
    return mode.name, bool(mode.has_full_cudagraphs())


def hides_full(vllm_config: Any) -> bool:
    """Whether the model runner hides FULL from connectors (Model Runner V2)."""
    return bool(getattr(vllm_config, "use_v2_model_runner", False))


def layer_count(vllm_config: Any) -> int:
    """How many layers the model has; 0 if its configuration does not say."""
    text_config = getattr(vllm_config.model_config, "hf_text_config", None)
    return int(getattr(text_config, "num_hidden_layers", 0) or 0)


def metric_labels(vllm_config: Any) -> dict[str, str]:
    """The labels vLLM gives every series of this engine on /metrics."""
    index = getattr(vllm_config.parallel_config, "data_parallel_index", 0)
    return {
        "model_name": str(getattr(vllm_config.model_config, "served_model_name", "")),
        "engine": str(index),
    }


def vllm_version() -> str:
    """Return the version vLLM gives itself."""
    import vllm

    return str(getattr(vllm, "__version__", "unknown"))


def mori_version() -> str:
    """Return the version of the mori that reads are posted with."""
    module = sys.modules.get("mori")
    version = getattr(module, "__version__", None)
    if version is not None:
        return str(version)
    try:
        return importlib.metadata.version("amd-mori")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


# Asked for each read; a model has few layers.
@functools.lru_cache(maxsize=4096)
def layer_index(layer_name: str, position: int) -> int:
    """The index of a layer in the model, from its name, else its position among the caches."""
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", layer_name)
    return int(found.group(1)) if found else position


def effective_warning(placement: Placement, era: Era, vllm_config: Any) -> str | None:
    """What to say at start when FULL graphs are configured and nothing protects them."""
    name, has_full = cudagraph_mode(vllm_config)
    if not has_full or placement.protects_full_graphs(era, hidden_full=hides_full(vllm_config)):
        return None
    return (
        f"MoRIIO READ mode with {name} CUDA graphs and barrier {placement.value!r}: a FULL graph "
        "replay waits for no read, and may decode on KV that has not landed. Set "
        "kv_connector_extra_config.observed.barrier to 'auto' to protect it. The CUDA graph mode "
        "is left as configured."
    )
