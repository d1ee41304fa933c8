"""What is verified of a model before the engine serves it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from orchard_core.engine.errors import EngineError
from orchard_core.engine.kv_store import KVStore
from orchard_core.engine.row_model import MIN_ROWS, RowBatch, forward_rows, kv_shape, make_segment

logger = logging.getLogger(__name__)

_PROBE_LENGTH = 12
_CROWDS = (MIN_ROWS, 7, 16, 37, 80)


def check_architecture(model: Any, max_context: int, install: Callable[[], None]) -> None:
    """Install the row implementation and compare it with the model's own forward pass.

    Raises EngineError when the model computes something the rows do not (another kind of attention).
    """
    window = getattr(model.config, "sliding_window", None)
    kinds = getattr(model.config, "layer_types", None) or ()
    if window and window < max_context and "sliding_attention" in kinds:
        raise EngineError(f"the engine can't run sliding-window attention ({window} < {max_context} tokens)")
    ids = _probe(model)
    with torch.inference_mode():
        expected = model(input_ids=ids[None], use_cache=False).logits[0]
        install()
        try:
            actual = _one_by_one(model, ids)
        except (TypeError, KeyError, AttributeError) as error:
            raise EngineError(f"the engine can't run {type(model).__name__}: {error}") from error
    tolerance = 1e-3 if model.dtype == torch.float32 else 0.1
    if not torch.allclose(expected, actual, atol=tolerance, rtol=tolerance):
        raise EngineError(f"the engine does not reproduce the outputs of {type(model).__name__}")


def is_batch_invariant(model: Any) -> bool:
    """Whether this machine's matrix products give a row the same bits in crowds of several sizes."""
    token = _probe(model)[:1]
    with torch.inference_mode():
        results = [_in_crowd(model, token, rows) for rows in _CROWDS]
    same: bool = all(torch.equal(result, results[0]) for result in results)
    if not same:
        logger.warning(
            "this machine's matrix kernels depend on the batch: seeds do not reproduce a run exactly"
        )
    return same


def _probe(model: Any) -> Tensor:
    return torch.arange(1, _PROBE_LENGTH + 1) % int(model.config.vocab_size)


def _one_by_one(model: Any, ids: Tensor) -> Tensor:
    """Logits of a sequence whose tokens come partly in one chunk, partly one a step."""
    store = KVStore(kv_shape(model.config), MIN_ROWS, 128, model.dtype)
    half = len(ids) // 2
    rows = [_step(model, store, ids[:half], list(range(half)))]
    rows += [_step(model, store, ids[at : at + 1], [at]) for at in range(half, len(ids))]
    return torch.cat(rows)


def _in_crowd(model: Any, token: Tensor, rows: int) -> Tensor:
    crowd = torch.cat([token, torch.arange(rows - 1) * 7 % model.config.vocab_size])
    store = KVStore(kv_shape(model.config), MIN_ROWS, 128, model.dtype)
    first: Tensor = _step(model, store, crowd, list(range(rows)))[0]
    return first


def _step(model: Any, store: KVStore, ids: Tensor, positions: list[int]) -> Tensor:
    padding = max(0, MIN_ROWS - len(ids))
    batch = RowBatch(
        torch.zeros(len(ids) + padding, dtype=torch.long),
        torch.tensor([*positions, *[store.trash] * padding]),
        (make_segment(0, 0, positions, one_slot=True),),
        store,
    )
    padded = torch.cat([ids, torch.zeros(padding, dtype=torch.long)])
    return forward_rows(model, padded, batch)[: len(ids)]
