"""Working memory of keys and values: one slot a running request, in blocks of fixed size."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 128
"""Positions in one attention block. Attention adds block after block, each a product of fixed shape."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """What the model stores of each token."""

    layers: int
    kv_heads: int
    head_dim: int

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * dtype.itemsize


class KVStore:
    """Keys and values of all slots; per layer a tensor (blocks, slots, kv_heads, BLOCK, head_dim).

    The last block of every slot is never attended to: rows that only pad a step write there.
    """

    def __init__(self, shape: KVShape, slots: int, max_context: int, dtype: torch.dtype) -> None:
        self.shape = shape
        self.blocks = -(-max_context // BLOCK) + 1
        self.trash = (self.blocks - 1) * BLOCK
        size = (shape.layers, self.blocks, slots, shape.kv_heads, BLOCK, shape.head_dim)
        self.keys = torch.zeros(size, dtype=dtype)
        self.values = torch.zeros(size, dtype=dtype)

    def write(self, layer: int, slots: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store one token a row; `keys` and `values` are (rows, kv_heads, head_dim)."""
        blocks, offsets = positions // BLOCK, positions % BLOCK
        self.keys[layer][blocks, slots, :, offsets] = keys
        self.values[layer][blocks, slots, :, offsets] = values

    def read(self, slot: int, start: int, stop: int) -> Tensor:
        """Positions start to stop of a slot, within one block: (2, layers, kv_heads, stop - start, head_dim)."""
        block, offset = divmod(start, BLOCK)
        span = slice(offset, offset + stop - start)
        return torch.stack([self.keys[:, block, slot, :, span], self.values[:, block, slot, :, span]])

    def fill(self, slot: int, start: int, chunk: Tensor) -> None:
        """Write what `read` gave to a slot, at `start` (the chunk stays within one block)."""
        block, offset = divmod(start, BLOCK)
        span = slice(offset, offset + chunk.shape[3])
        self.keys[:, block, slot, :, span] = chunk[0]
        self.values[:, block, slot, :, span] = chunk[1]
