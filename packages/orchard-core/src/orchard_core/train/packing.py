"""Packing: variable-length sequences laid end to end in one row, with no padding and no crosstalk.

Positions restart at each segment, and attention runs segment by segment (`SEGMENTED`, registered
with transformers), so that a packed row gives exactly what its sequences give alone. No mask of
row length squared exists, and no token is computed that nobody needs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchard_core.errors import MissingExtraError

try:
    import torch
    from torch import Tensor
    from torch.nn.functional import scaled_dot_product_attention
except ImportError as error:
    raise MissingExtraError("torch", "train") from error
try:
    from transformers import AttentionInterface, AttentionMaskInterface
except ImportError as error:
    raise MissingExtraError("transformers", "train") from error

SEGMENTED = "orchard_segmented"
"""The attention implementation to load a model with (`attn_implementation=SEGMENTED`)."""


@dataclass(frozen=True, slots=True)
class Row:
    """A packed row of N tokens. `ids` and `positions` have shape (1, N); segment i spans
    `bounds[i]:bounds[i + 1]` and holds sequence `members[i]` of the caller's list."""

    ids: Tensor
    positions: Tensor
    bounds: tuple[int, ...]
    members: tuple[int, ...]

    def model_inputs(self) -> dict[str, Any]:
        """Keyword arguments for a causal language model loaded with `SEGMENTED` attention."""
        return {
            "input_ids": self.ids,
            "position_ids": self.positions,
            "segment_bounds": self.bounds,
            "use_cache": False,
        }


def plan_rows(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Which sequences share a row: each row holds at most `max_tokens`, unless one alone is longer.

    First fit in order of falling length; deterministic, every index exactly once.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        place = next((row for row, free in enumerate(room) if free >= length), None)
        if place is None:
            rows.append([index])
            room.append(max_tokens - length)
        else:
            rows[place].append(index)
            room[place] -= length
    return [sorted(row) for row in rows]


def pack(sequences: Sequence[NDArray[np.int32]], members: Sequence[int]) -> Row:
    """Lay the member sequences end to end."""
    chosen = [sequences[member] for member in members]
    bounds = np.concatenate([[0], np.cumsum([len(ids) for ids in chosen])])
    positions = np.concatenate([np.arange(len(ids)) for ids in chosen])
    return Row(
        ids=torch.from_numpy(np.concatenate(chosen).astype(np.int64))[None],
        positions=torch.from_numpy(positions)[None],
        bounds=tuple(int(bound) for bound in bounds),
        members=tuple(members),
    )


def rows_of(sequences: Sequence[NDArray[np.int32]], max_tokens: int) -> list[Row]:
    """All sequences in as few rows as `plan_rows` finds."""
    return [pack(sequences, members) for members in plan_rows([len(ids) for ids in sequences], max_tokens)]


def segmented_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    segment_bounds: Sequence[int] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each segment. query (B, H, N, D); returns (B, N, H, D).

    Without `segment_bounds` the whole row is one segment.
    """
    del module, attention_mask
    bounds = segment_bounds or (0, query.shape[2])
    grouped = query.shape[1] != key.shape[1]
    outputs = []
    for start, stop in itertools.pairwise(bounds):
        mask = _window(stop - start, sliding_window, query.device)
        outputs.append(
            scaled_dot_product_attention(
                query[:, :, start:stop],
                key[:, :, start:stop],
                value[:, :, start:stop],
                attn_mask=mask,
                dropout_p=dropout,
                is_causal=mask is None,
                scale=scaling if scaling is not None else 1 / math.sqrt(query.shape[-1]),
                enable_gqa=grouped,
            )
        )
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous(), None


def _window(length: int, sliding_window: int | None, device: torch.device) -> Tensor | None:
    if sliding_window is None or length <= sliding_window:
        return None
    steps = torch.arange(length, device=device)
    distance = steps[:, None] - steps[None, :]
    return (distance >= 0) & (distance < sliding_window)


def _no_mask(*_: Any, **__: Any) -> None:
    """Segment bounds say all that a mask would."""


AttentionInterface.register(SEGMENTED, segmented_attention)
AttentionMaskInterface.register(SEGMENTED, _no_mask)
