import importlib
import types

import pytest
import torch

from moriio_observed.loopback.alignment import (
    PAGE_BYTES,
    align_kv_cache,
    aligned_zeros,
    restore_kv_cache,
)


@pytest.fixture(scope="module")
def utils():
    return importlib.import_module("vllm.v1.worker.utils")


@pytest.fixture(autouse=True)
def _restored():
    yield
    restore_kv_cache()


def storage_of(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def allocate(utils) -> dict[str, torch.Tensor]:
    """Let vLLM allocate a cache of two layers that is no multiple of a page."""
    interface = importlib.import_module("vllm.v1.kv_cache_interface")
    layout = importlib.import_module("vllm.v1.kv_cache_layout").KVCacheLayout.LBHNC
    spec = interface.FullAttentionSpec(
        block_size=4, num_kv_heads=1, head_size=8, dtype=torch.float32
    )
    page = spec.page_size_bytes
    names = ["layer.0", "layer.1"]
    config = interface.KVCacheConfig(
        num_blocks=5,
        kv_cache_tensors=[
            interface.KVCacheTensor(
                size=2 * 5 * page, layers=names, layer_stride=5 * page, block_stride=page
            )
        ],
        kv_cache_groups=[interface.KVCacheGroupSpec(names, spec)],
    )
    return utils.allocate_kv_cache(config, torch.device("cpu"), layout)


@pytest.mark.parametrize("size", [1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, 100_000])
def test_memory_starts_on_a_page_fills_pages_and_is_zero(size):
    made = aligned_zeros(size)
    address, stored = storage_of(made)
    assert made.shape == (size,)
    assert made.dtype == torch.int8
    assert not made.any()
    assert address % PAGE_BYTES == 0
    assert stored % PAGE_BYTES == 0
    assert 0 <= stored - size < PAGE_BYTES


def test_the_kv_cache_vllm_allocates_starts_on_a_page_and_fills_pages(utils):
    assert align_kv_cache()
    for cache in allocate(utils).values():
        address, stored = storage_of(cache)
        assert (address % PAGE_BYTES, stored % PAGE_BYTES) == (0, 0)


def test_vllm_finds_the_cache_as_it_would_without(utils):
    plain = allocate(utils)
    align_kv_cache()
    aligned = allocate(utils)
    for name, cache in plain.items():
        assert aligned[name].shape == cache.shape
        assert aligned[name].stride() == cache.stride()
        assert aligned[name].storage_offset() == cache.storage_offset()
        assert torch.equal(aligned[name], cache)


def test_other_allocations_are_left_to_torch(utils):
    align_kv_cache()
    made = utils.torch.zeros(3, dtype=torch.int32, device="cpu")
    assert storage_of(made)[1] == 12
    assert utils.torch.zeros(2, 3).shape == (2, 3)
    assert utils.torch.Tensor is torch.Tensor


def test_aligning_twice_is_aligning_once(utils):
    align_kv_cache()
    first = utils.torch
    align_kv_cache()
    assert utils.torch is first


def test_restoring_gives_torch_back(utils):
    align_kv_cache()
    restore_kv_cache()
    assert utils.torch is torch


def test_a_vllm_that_registers_layers_one_by_one_is_left_alone(monkeypatch):
    older = types.SimpleNamespace(torch=torch)
    monkeypatch.setattr("vllm.v1.worker.utils", older)
    assert not align_kv_cache()
    assert older.torch is torch
