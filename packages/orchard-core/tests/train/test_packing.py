"""Packing changes no loss value and no gradient."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from orchard_core.train.backends.hf_folder import load_causal_lm
from orchard_core.train.batch import WeightedSample
from orchard_core.train.losses import LossConfig, LossStats, targets_of, weighted_loss
from orchard_core.train.packing import pack, plan_rows, rows_of, segmented_attention
from orchard_core.trajectory.types import Sample

MakeSample = Callable[..., Sample]
CONFIG = LossConfig()


@pytest.fixture(scope="module")
def model(model_folder: Path) -> torch.nn.Module:
    return load_causal_lm(model_folder)


def weigh_everything(sample: Sample, seed: int) -> WeightedSample:
    """Random weights of both signs on every term."""
    rng = np.random.default_rng(seed)

    def weights() -> np.ndarray:
        return np.where(sample.mask, rng.normal(size=len(sample)), 0).astype(np.float32)

    ref = -rng.random(len(sample)).astype(np.float32) * 4
    return WeightedSample(sample, weights(), weights(), abs(weights()), ref, abs(weights()))


def packed_loss(
    model: torch.nn.Module, batch: list[WeightedSample], max_tokens: int
) -> tuple[float, list[torch.Tensor]]:
    model.zero_grad()
    stats = LossStats()
    for row in rows_of([item.sample.ids for item in batch], max_tokens):
        targets = targets_of(row, batch, torch.device("cpu"))
        logits = model(**row.model_inputs(), logits_to_keep=targets.before).logits[0]
        weighted_loss(logits, targets, CONFIG, stats).backward()
    return stats.loss, gradients(model)


def gradients(model: torch.nn.Module) -> list[torch.Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


@given(
    lengths=st.lists(st.integers(2, 40), min_size=1, max_size=6),
    max_tokens=st.integers(1, 120),
    seed=st.integers(0, 1000),
)
@settings(max_examples=12, deadline=None)
def test_a_packed_batch_has_the_losses_and_gradients_of_its_samples(
    model: torch.nn.Module, make_sample: MakeSample, lengths: list[int], max_tokens: int, seed: int
) -> None:
    batch = [weigh_everything(make_sample(n, seed + i), seed + i) for i, n in enumerate(lengths)]
    alone = [packed_loss(model, [item], 1) for item in batch]
    loss, grads = packed_loss(model, batch, max_tokens)
    scale = max(1.0, sum(abs(value) for value, _ in alone))
    assert abs(loss - sum(value for value, _ in alone)) / scale < 1e-5
    # Float error follows the largest gradient that flows through, not each parameter's own: queries
    # and keys of a one-token context have gradient 0 but for rounding.
    largest = max(float(part.abs().max()) for _, parts in alone for part in parts)
    for got, *parts in zip(grads, *(g for _, g in alone), strict=True):
        assert torch.allclose(got, torch.stack(parts).sum(0), rtol=0, atol=1e-5 * largest)


def test_segmented_attention_equals_the_models_own(
    model: torch.nn.Module, model_folder: Path, make_sample: MakeSample
) -> None:
    plain = AutoModelForCausalLM.from_pretrained(model_folder, dtype="float32", attn_implementation="eager")
    samples = [make_sample(n, n).ids for n in (7, 19, 12)]
    row = pack(samples, [0, 1, 2])
    with torch.no_grad():
        packed = model(**row.model_inputs()).logits[0]
        alone = [plain(input_ids=torch.from_numpy(ids.astype(np.int64))[None]).logits[0] for ids in samples]
    assert torch.allclose(packed, torch.cat(alone), atol=1e-5)


def test_a_sample_does_not_see_its_neighbours(model: torch.nn.Module, make_sample: MakeSample) -> None:
    first, second, other = make_sample(9, 1).ids, make_sample(14, 2).ids, make_sample(9, 3).ids
    with torch.no_grad():
        one = model(**pack([first, second], [0, 1]).model_inputs()).logits[0, 9:]
        two = model(**pack([other, second], [0, 1]).model_inputs()).logits[0, 9:]
    assert torch.allclose(one, two, atol=1e-5)


def test_a_sliding_window_limits_how_far_a_token_sees() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, 10, 4, generator=generator) for _ in range(3))
    narrow, _ = segmented_attention(
        torch.nn.Identity(), query, key, value, None, sliding_window=3, segment_bounds=(0, 4, 10)
    )
    for position, start in [(2, 0), (3, 1), (4, 4), (9, 7)]:
        seen = slice(start, position + 1)
        scores = torch.softmax(
            query[0, :, position : position + 1] @ key[0, :, seen].transpose(1, 2) / 2, dim=-1
        )
        assert torch.allclose(narrow[0, position], (scores @ value[0, :, seen])[:, 0], atol=1e-6)


@given(lengths=st.lists(st.integers(1, 50), max_size=30), max_tokens=st.integers(1, 100))
def test_rows_hold_every_sequence_once_and_respect_the_limit(lengths: list[int], max_tokens: int) -> None:
    rows = plan_rows(lengths, max_tokens)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert all(len(row) == 1 or sum(lengths[i] for i in row) <= max_tokens for row in rows)
