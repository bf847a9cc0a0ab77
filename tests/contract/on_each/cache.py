"""A KV cache whose right contents are known, and a model that sees whether they are there.

What a layer keeps for a token depends on that layer and on every token up to it, as in a real
model. So whoever attends can tell KV that is right from KV that is not: memory nobody has filled,
another prompt's, or a read that has not landed.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from math import prod

import torch

HEADS = 2
HEAD_SIZE = 32
CONV_STATE = (96, 3)
SSM_STATE = (2, 16, 16)
"""A Gated Delta Net's: (Q, K and V, rows), and (heads, V, K) with as much V as Q and K each."""
PAGE = 4096


class Cache:
    """The KV cache of one engine: `[blocks, K and V, slots, heads, head size]` for each layer.

    Args:
        layers: The layers' names.
        blocks: How many blocks there are.
        block_size: Tokens per block.
    """

    def __init__(self, layers: Sequence[str], blocks: int, block_size: int) -> None:
        self.block_size = block_size
        shape = (blocks, 2, block_size, HEADS, HEAD_SIZE)
        numbers = blocks * 2 * block_size * HEADS * HEAD_SIZE
        # One page-aligned allocation, as vLLM makes it where RDMA needs it.
        memory = torch.zeros(len(layers) * numbers + 2 * PAGE // 4, dtype=torch.float32)
        first = -memory.data_ptr() % PAGE // 4
        whole = torch.frombuffer(memory.numpy(), dtype=torch.float32, offset=first * 4)
        self._memory = memory
        self.tensors = {
            name: whole[index * numbers : (index + 1) * numbers].view(shape)
            for index, name in enumerate(layers)
        }

    def pages(self, layer: str) -> torch.Tensor:
        """The layer's memory as vLLM gives it to recurrent state: `[blocks, 1, 1, bytes]`."""
        return self.tensors[layer].flatten(1).view(torch.uint8)[:, None, None]

    def is_right(self, layer: str, blocks: Sequence[int], tokens: Sequence[int]) -> bool:
        """Whether the layer's KV of all these tokens stands in these blocks."""
        kept = self.tensors[layer][list(blocks)].transpose(1, 2).flatten(0, 1)[: len(tokens)]
        return bool((kept == _contents(layer, tokens)[:, None, None, None]).all())

    def forget(self) -> None:
        """Hold nothing that was right."""
        self._memory.zero_()

    def write(self, layer: str, blocks: Sequence[int], tokens: Sequence[int], start: int) -> None:
        """Keep the layer's KV of the tokens from `start` on."""
        for position, value in enumerate(_contents(layer, tokens).tolist()[start:], start):
            block, slot = divmod(position, self.block_size)
            self.tensors[layer][blocks[block], :, slot] = value


class States:
    """The recurrent state of one engine: one state for each layer, of all tokens so far.

    It stands in one block of a request, convolution state first, then SSM state.

    Args:
        pages: Each layer's memory.
    """

    def __init__(self, pages: Mapping[str, torch.Tensor]) -> None:
        self.tensors = dict(pages)
        self._numbers = prod(CONV_STATE) + prod(SSM_STATE)

    def is_right(self, layer: str, block: int, tokens: Sequence[int]) -> bool:
        """Whether the layer's state after all these tokens stands in this block."""
        return not tokens or bool((self._kept(layer, block) == _contents(layer, tokens)[-1]).all())

    def write(self, layer: str, block: int, tokens: Sequence[int]) -> None:
        """Keep the layer's state after these tokens."""
        self._kept(layer, block)[:] = _contents(layer, tokens)[-1]

    def _kept(self, layer: str, block: int) -> torch.Tensor:
        return self.tensors[layer][block].flatten().view(torch.float32)[: self._numbers]


def next_token(tokens: Sequence[int], *, right: bool) -> int:
    """What the model says after these tokens; something else where it has read wrong KV."""
    said = zlib.crc32(str(list(tokens)).encode()) % 500 + 3
    return said if right else said + 500


def _contents(layer: str, tokens: Sequence[int]) -> torch.Tensor:
    values = []
    seen = zlib.crc32(layer.encode())
    for token in tokens:
        seen = zlib.crc32(token.to_bytes(4, "little"), seen)
        # Exact in float32, and never the 0 of memory that nobody has filled.
        values.append(float(seen & 0x7FFFFF) + 1)
    return torch.tensor(values)
