"""A tiny Mixture-of-Experts model and made-up samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from orchard_core.trajectory.types import Sample

VOCAB = 64
MakeSample = Callable[..., Sample]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    folder = tmp_path_factory.mktemp("model")
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text('{"made": "up"}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


@pytest.fixture(scope="session")
def make_sample() -> MakeSample:
    def make(length: int, seed: int = 0, share: float = 0.5, has_logprobs: bool = True) -> Sample:
        rng = np.random.default_rng([seed, length])
        mask = rng.random(length) < share
        mask[0], mask[-1] = False, True
        logprobs = np.where(mask, -rng.random(length) * 4, 0).astype(np.float32)
        return Sample(
            trajectory_id=f"trajectory-{seed}",
            task_id=f"task-{seed}",
            ids=rng.integers(0, VOCAB, length).astype(np.int32),
            mask=mask,
            logprobs=logprobs,
            calls=np.where(mask, 0, -1).astype(np.int32),
            has_logprobs=has_logprobs,
            weight_version=0,
        )

    return make
