"""Runs a Hugging Face causal model on rows: one token each, of any mixture of requests.

Every row's numbers are independent of the other rows, bit for bit. A row is a batch entry of length
one, so the model's own linear layers see (rows, features) matrices; here are the two places where
rows could still meet: attention (each request reads its own slot, block by block, in fixed shapes)
and mixture-of-experts layers. Matrix products of very few rows take other kernels with another
order of summation, so every product is padded to `min_rows` rows (4 on common CPUs; measured when
an engine starts, see `engine_checks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, batched_mm_experts_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from orchard_core.engine.kv_store import BLOCK, KVShape, KVStore

ATTENTION = "orchard_rows"
EXPERTS = "orchard_sorted"
MIN_ROWS = 4
"""The least padding, and the one used until a machine is known to need more."""


@dataclass(frozen=True, slots=True)
class Segment:
    """`count` rows of the step beginning at `first`: one row for each of the slots from `slot` on,
    or with `one_slot` that many positions of the single slot `slot`."""

    first: int
    count: int
    slot: int
    one_slot: bool
    mask: Tensor
    """What must not be seen: (blocks, slots, rows of a slot, BLOCK)."""


@dataclass(frozen=True, slots=True)
class RowBatch:
    """One step: the token, slot and position of every row."""

    slots: Tensor
    positions: Tensor
    segments: tuple[Segment, ...]
    store: KVStore


def make_segment(first: int, slot: int, positions: Sequence[int], *, one_slot: bool) -> Segment:
    """A segment whose rows have the given positions."""
    blocks = max(positions) // BLOCK + 1
    rows = torch.tensor(positions).view((1, 1, -1, 1) if one_slot else (1, -1, 1, 1))
    places = torch.arange(blocks * BLOCK).view(blocks, 1, 1, BLOCK)
    return Segment(first, len(positions), slot, one_slot, places > rows)


def kv_shape(config: Any) -> KVShape:
    """The cache's shape from a model's configuration."""
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return KVShape(config.num_hidden_layers, kv_heads, head_dim)


def min_rows(model: Any) -> int:
    """The rows that every matrix product of the model (or of one of its modules) is padded to."""
    rows: int = model.config.orchard_min_rows
    return rows


def set_min_rows(model: Any, rows: int) -> None:
    model.config.orchard_min_rows = rows


def install(model: Any) -> None:
    """Switch a model to this module's attention and experts."""
    set_min_rows(model, MIN_ROWS)
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attention)
    ALL_EXPERTS_FUNCTIONS.register(EXPERTS, _experts)
    model.config._attn_implementation = ATTENTION
    model.config._experts_implementation = EXPERTS


def forward_rows(model: Any, ids: Tensor, batch: RowBatch) -> Tensor:
    """Logits (rows, vocab) of a step; stores the rows' keys and values."""
    output = model(
        input_ids=ids[:, None],
        position_ids=batch.positions[:, None],
        use_cache=False,
        rows=batch,
    )
    logits: Tensor = output.logits[:, 0]
    return logits


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    rows: RowBatch,
    **_unused: Any,
) -> tuple[Tensor, None]:
    """Hugging Face's attention interface: query (rows, heads, 1, head_dim) -> (rows, 1, heads, head_dim)."""
    store, layer = rows.store, module.layer_idx
    store.write(layer, rows.slots, rows.positions, key[:, :, 0], value[:, :, 0])
    kv_heads = key.shape[1]
    count, heads, _, head_dim = query.shape
    queries = (query * scaling).view(count, kv_heads, heads // kv_heads, head_dim)
    output = torch.zeros_like(queries)  # rows of no segment only pad the step
    for segment in rows.segments:
        span = slice(segment.first, segment.first + segment.count)
        output[span] = _attend(
            queries[span], store.keys[layer], store.values[layer], segment, min_rows(module)
        )
    return output.view(count, 1, heads, head_dim), None


def _attend(queries: Tensor, keys: Tensor, values: Tensor, segment: Segment, least: int) -> Tensor:
    """Attention of (rows, kv_heads, group, head_dim) queries over the segment's slots."""
    rows, kv_heads, group, head_dim = queries.shape
    slots = 1 if segment.one_slot else rows
    if segment.one_slot:
        queries = queries.transpose(0, 1)
    # (slots * kv_heads, rows of a slot * group, head_dim)
    flat = queries.reshape(slots * kv_heads, -1, head_dim)
    width = flat.shape[1]
    flat = functional.pad(flat, (0, 0, 0, least - width)) if width < least else flat
    blocks = segment.mask.shape[0]
    near = slice(segment.slot, segment.slot + slots)
    key_blocks = [keys[block, near].flatten(0, 1) for block in range(blocks)]
    scores = torch.stack([torch.bmm(flat, block.transpose(1, 2)) for block in key_blocks])
    visible = scores[:, :, :width].view(blocks, slots, kv_heads, -1, group, BLOCK)
    visible.masked_fill_(segment.mask[:, :, None, :, None], -torch.inf)
    weights = torch.exp(scores - scores.amax(dim=(0, 3), keepdim=True))
    sums = weights.sum(dim=3)
    total, mixed = sums[0], torch.bmm(weights[0], values[0, near].flatten(0, 1))
    for block in range(1, blocks):
        total = total + sums[block]
        mixed = mixed + torch.bmm(weights[block], values[block, near].flatten(0, 1))
    result = (mixed / total[..., None])[:, :width]
    if segment.one_slot:
        return result.view(kv_heads, rows, group, head_dim).transpose(0, 1)
    return result.view(rows, kv_heads, group, head_dim)


def _experts(self: Any, hidden: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Hugging Face's experts interface: hidden (rows, features), index and weights (rows, k).

    Rows are sorted by expert; each expert multiplies its own rows (padded to `min_rows` by its
    neighbours' rows, whose results are discarded), and each row sums its k results in the order of its own routing.
    """
    if not self.has_gate or self.has_bias or self.is_transposed or self.has_post_expert_norm:
        result: Tensor = batched_mm_experts_forward(self, hidden, top_k_index, top_k_weights)
        return result
    rows, k = top_k_index.shape
    flat = top_k_index.flatten()
    order = flat.argsort(stable=True)
    spans = _spans(torch.bincount(flat, minlength=self.num_experts).tolist())
    least = min_rows(self)
    gathered = functional.pad(hidden[order // k], (0, 0, 0, least))
    gate_up = _grouped(gathered, self.gate_up_proj, spans, least)
    activated = self._apply_gate(gate_up)
    down = _grouped(activated, self.down_proj, spans, least)[: rows * k]
    unsorted = torch.empty_like(down)
    unsorted[order] = down
    weighted = unsorted.view(rows, k, -1) * top_k_weights[:, :, None]
    return weighted.sum(dim=1).to(hidden.dtype)


def _spans(counts: Sequence[int]) -> list[tuple[int, int, int]]:
    """(expert, start, count) of the experts in use."""
    spans, start = [], 0
    for expert, count in enumerate(counts):
        if count:
            spans.append((expert, start, count))
        start += count
    return spans


def _grouped(inputs: Tensor, weights: Tensor, spans: Sequence[tuple[int, int, int]], least: int) -> Tensor:
    outputs = inputs.new_zeros(inputs.shape[0], weights.shape[1])
    for expert, start, count in spans:
        stop = start + max(count, least)
        outputs[start : start + count] = functional.linear(inputs[start:stop], weights[expert])[:count]
    return outputs
