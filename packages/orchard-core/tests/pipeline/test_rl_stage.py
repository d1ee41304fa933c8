"""The rl stage's step: which rollouts train, what is counted, and what resuming finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trajectory_fakes import make_call, make_trajectory

from orchard_core.domain.types import Reward
from orchard_core.engine.tiny import make_tiny_model
from orchard_core.pipeline.stages.rl import group_figures, make_sampler, resume, score, train_on
from orchard_core.recipe import GroupConfig, RlStage
from orchard_core.rollout.sampling import Group
from orchard_core.train.backends.torch_backend import TorchBackend
from orchard_core.train.backends.torch_config import TorchConfig
from orchard_core.train.folders import step_folder
from orchard_core.trajectory.types import Lineage, Trajectory


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(
        tmp_path_factory.mktemp("tiny"), ["ab"], vocab_size=320, hidden=16, layers=1, heads=1, kv_heads=1
    )


@pytest.fixture
def backend(model: Path) -> TorchBackend:
    return TorchBackend(model, TorchConfig(lr=1e-3, total_steps=4, threads=1))


def stage(**more: Any) -> RlStage:
    return RlStage(name="rl", kind="rl", init="sft", steps=4, **more)


def rollout(sample: int, won: bool) -> Trajectory:
    """Two calls, of which the second continues the first; 5 sampled tokens."""
    calls = [make_call(0, [3, 4], [5, 6, 7]), make_call(1, [3, 4, 5, 6, 7, 8], [9, 10 + sample])]
    return make_trajectory(
        f"t{sample}",
        calls,
        reward=Reward.success() if won else Reward.failure(),
        lineage=Lineage(run="r", stage="rl", sample=sample),
    )


async def group(wins: list[bool], **config: Any) -> Group[Trajectory]:
    async def generate(indices: Any) -> list[Trajectory]:
        return [rollout(index, wins[index]) for index in indices]

    return await make_sampler(GroupConfig(**config)).sample(generate, score)


async def test_a_step_trains_on_the_selected_and_counts_everything(backend: TorchBackend) -> None:
    groups = [
        await group([True, False, False, False], n=2, max_samples=4, stride=4),
        await group([False] * 4, n=2, max_samples=4, stride=4),
    ]
    report = train_on(backend, groups, stage(), None)
    figures = group_figures(groups)
    assert (report["groups"], report["rollouts"]) == (1, 2)
    assert (figures["rollouts"], figures["groups"], figures["groups_trained"]) == (8, 2, 1)
    assert figures["success"] == pytest.approx(1 / 8)
    assert figures["sampled_tokens"] == 8 * 5
    assert figures["dropped_no_positive"] == 1


async def test_nothing_is_learnt_where_no_group_is_mixed(backend: TorchBackend) -> None:
    before = {name: tensor.clone() for name, tensor in backend.state_dict().items()}
    groups = [await group([False] * 4, kind="uniform", n=4), await group([True] * 4, kind="uniform", n=4)]
    assert train_on(backend, groups, stage(), None) == {}
    assert all((before[name] == tensor).all() for name, tensor in backend.state_dict().items())


async def test_kl_measures_the_distance_from_the_reference(model: Path, backend: TorchBackend) -> None:
    reference = TorchBackend(model, TorchConfig(lr=1e-3, total_steps=4, threads=1)).logprobs
    groups = [await group([True, False], kind="uniform", n=2)]
    first = train_on(backend, groups, stage(kl=0.1), reference)
    second = train_on(backend, groups, stage(kl=0.1), reference)
    assert first["kd"] == pytest.approx(0, abs=1e-6)
    assert second["kd"] > 1e-6
    assert "kd" not in train_on(backend, groups, stage(), None)


def test_resuming_knows_the_steps_and_what_they_came_to(backend: TorchBackend, tmp_path: Path) -> None:
    totals = {"rollouts": 0, "sampled_tokens": 0, "trained_rollouts": 0}
    assert resume(backend, tmp_path) == (0, totals)
    totals["rollouts"] = 7
    backend.save_checkpoint(step_folder(tmp_path, 3), {"step": 3, "totals": totals})
    assert resume(backend, tmp_path) == (3, totals)
