"""Page-aligned KV memory off ROCm.

From 0.29 on the connector registers the whole KV cache as one region that starts and ends on a
page, but vLLM allocates it that way on ROCm alone. So the one `torch.zeros` call that makes the
backing is answered with memory straight from `mmap`.
"""

import mmap
import types
from typing import Any

import torch

PAGE_BYTES = 4096  # what the connector's _build_shared_kv_mr goes by, whatever the machine's is


class _TorchForKvCache(types.ModuleType):
    """`torch` as `vllm.v1.worker.utils` sees it: all of it, but for the KV cache's `zeros`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *size: Any, **options: Any) -> torch.Tensor:
        """Answer the KV cache's allocation ourselves, pass every other one on."""
        if _is_kv_backing(size, options):
            return aligned_zeros(size[0])
        return torch.zeros(*size, **options)


def align_kv_cache() -> bool:
    """Make vLLM in this process allocate KV memory page-aligned; idempotent.

    Returns:
        Whether this vLLM needs it: releases before 0.29 register each layer as it is.
    """
    from vllm.v1.worker import utils

    if not hasattr(utils, "allocate_kv_cache"):
        return False
    if utils.torch is torch:
        utils.torch = _TorchForKvCache("torch")
    return True


def restore_kv_cache() -> None:
    """Undo `align_kv_cache`; what has been allocated stays."""
    from vllm.v1.worker import utils

    utils.torch = torch


def aligned_zeros(size: int) -> torch.Tensor:
    """Return `size` zero bytes (int8) whose storage starts on a page and fills whole pages."""
    padded = -(-size // PAGE_BYTES) * PAGE_BYTES
    memory = mmap.mmap(-1, padded, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.int8)[:size]


def _is_kv_backing(size: tuple[Any, ...], options: dict[str, Any]) -> bool:
    return (
        len(size) == 1
        and isinstance(size[0], int)
        and size[0] > 0
        and options.keys() == {"dtype", "device"}
        and options["dtype"] is torch.int8
        and torch.device(options["device"]).type == "cpu"
    )
