"""A tiny model and made-up trajectories whose tokens tell how they ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from orchard_core.domain.types import Reward
from orchard_core.trajectory.types import Lineage, ModelCall, Outcome, Trajectory

VOCAB = 32
MakeTrajectory = Callable[..., Trajectory]


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
    return folder


def call(index: int, prompt: np.ndarray, completion: np.ndarray) -> ModelCall:
    return ModelCall(
        id=f"call-{index}",
        index=index,
        request={},
        response={},
        prompt_ids=prompt.astype(np.int32),
        completion_ids=completion.astype(np.int32),
        logprobs=None,
        token_source="engine",
        prompt_mode="rendered",
        finish_reason="stop",
        model="tiny",
        weight_version=0,
        started_at=0.0,
        first_token_at=0.0,
        finished_at=0.0,
    )


@pytest.fixture(scope="session")
def make_trajectory() -> MakeTrajectory:
    def make(seed: int, success: bool | None, task: str = "", package: str = "") -> Trajectory:
        """Success shows in one token of the last turn, amid noise."""
        rng = np.random.default_rng(seed)
        first = rng.integers(4, VOCAB, rng.integers(4, 10))
        answer = rng.integers(4, VOCAB, 4)
        last = np.concatenate([rng.integers(4, VOCAB, 2), [1 if success else 2], rng.integers(4, VOCAB, 2)])
        longer = np.concatenate([first, answer, rng.integers(4, VOCAB, 3)])
        reward = (
            Reward.none("sandbox") if success is None else Reward.success() if success else Reward.failure()
        )
        return Trajectory(
            id=f"t{seed}",
            task_id=task or f"task-{seed}",
            domain="made-up",
            harness="react",
            model="tiny",
            calls=(call(0, first, answer), call(1, longer, last)),
            outcome=Outcome("completed", "submitted"),
            reward=reward,
            lineage=Lineage("run", "rl"),
            tags={"package": package} if package else {},
        )

    return make
