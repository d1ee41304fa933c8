"""What is verified of a model before the engine serves it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from orchard_core.engine.errors import EngineError
from orchard_core.engine.kv_store import BLOCK, KVStore
from orchard_core.engine.row_model import (
    MIN_ROWS,
    RowBatch,
    Segment,
    forward_rows,
    kv_shape,
    make_segment,
    min_rows,
    set_min_rows,
)

logger = logging.getLogger(__name__)

_PROBE_LENGTH = 12
_CROWDS = (0, 1, 4, 9, 17, 36, 79)
_PADDINGS = (MIN_ROWS, 8, 16, 32)


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


def find_min_rows(model: Any) -> int | None:
    """Set the model's smallest row padding under which a row has the same bits in any company.

    Returns it, or None (after a warning) if this machine's matrix kernels have no such padding.
    """
    for rows in _PADDINGS:
        set_min_rows(model, rows)
        with torch.inference_mode():
            results = [_in_crowd(model, crowd, chunk=chunk) for crowd in _CROWDS for chunk in (False, True)]
        if all(torch.equal(result, results[0]) for result in results):
            return rows
    set_min_rows(model, MIN_ROWS)
    logger.warning("this machine's matrix kernels depend on the batch: seeds do not reproduce a run exactly")
    return None


def _probe(model: Any) -> Tensor:
    return torch.arange(1, _PROBE_LENGTH + 1) % int(model.config.vocab_size)


def _one_by_one(model: Any, ids: Tensor) -> Tensor:
    """Logits of a sequence whose tokens come partly in one chunk, partly one a step."""
    store = KVStore(kv_shape(model.config), 1, BLOCK, model.dtype)
    half = len(ids) // 2
    rows = [_step(model, store, ids[:half], list(range(half)))]
    rows += [_step(model, store, ids[at : at + 1], [at]) for at in range(half, len(ids))]
    return torch.cat(rows)


def _in_crowd(model: Any, crowd: int, *, chunk: bool) -> Tensor:
    """Logits of one row after a fixed prefix, computed together with `crowd` others: with `chunk` the
    following positions of its own sequence, else the first positions of another one."""
    vocab = model.config.vocab_size
    store = KVStore(kv_shape(model.config), 2, 2 * BLOCK, model.dtype)
    prefix = torch.arange(BLOCK + 2) * 5 % vocab
    _step(model, store, prefix, list(range(len(prefix))))
    ids = torch.arange(crowd + 1) * 7 % vocab
    own = range(len(prefix), len(prefix) + (crowd + 1 if chunk else 1))
    other = range(0 if chunk else crowd)
    segments = [make_segment(0, 0, own, one_slot=chunk)]
    if other:
        segments.append(make_segment(1, 1, other, one_slot=True))
    slots = [0] * len(own) + [1] * len(other)
    return _run(model, store, ids, slots, [*own, *other], segments)[0]


def _step(model: Any, store: KVStore, ids: Tensor, positions: list[int]) -> Tensor:
    segment = make_segment(0, 0, positions, one_slot=True)
    return _run(model, store, ids, [0] * len(ids), positions, [segment])


def _run(
    model: Any, store: KVStore, ids: Tensor, slots: list[int], positions: list[int], segments: list[Segment]
) -> Tensor:
    padding = max(0, min_rows(model) - len(ids))
    batch = RowBatch(
        torch.tensor([*slots, *[0] * padding]),
        torch.tensor([*positions, *[store.trash] * padding]),
        tuple(segments),
        store,
    )
    logits = forward_rows(model, functional.pad(ids, (0, padding)), batch)
    return logits[: len(ids)]
