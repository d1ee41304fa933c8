"""The rl stage: groups of rollouts, a policy-gradient step, new weights, again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchard_core.domain import Task
from orchard_core.pipeline.context import RunContext
from orchard_core.pipeline.seeds import derive_seed
from orchard_core.pipeline.stages.evaluate import count
from orchard_core.recipe import GroupConfig, RlStage
from orchard_core.rollout.sampling import BalancedSampler, Group, Scored, UniformSampler
from orchard_core.train.algorithms.grpo import GrpoConfig, Reference, Rollout
from orchard_core.train.backends.torch_backend import TorchBackend
from orchard_core.train.folders import keep_newest, step_folder, step_folders
from orchard_core.train.loops import RlConfig, rl_step
from orchard_core.trajectory.samples import build_samples
from orchard_core.trajectory.types import Trajectory

RolloutGroup = Group[Trajectory]


def task_order(tasks: Sequence[Task], seed: int, count: int) -> list[Task]:
    """`count` tasks: every task once in a seeded order, then all again in another, and so on."""
    order: list[Task] = []
    epoch = 0
    while len(order) < count:
        shuffled = list(tasks)
        random.Random(derive_seed(seed, epoch)).shuffle(shuffled)
        order += shuffled
        epoch += 1
    return order[:count]


async def collect_groups(
    context: RunContext, stage: RlStage, step: int, tasks: Sequence[Task]
) -> list[RolloutGroup]:
    """Groups of one step. Dropped groups are replaced by further prompts, up to `stage.max_draws`.

    Prompts are drawn in waves whose sizes depend on the groups' results only, never on timing,
    so that the seed fixes which tasks a step trains on.
    """
    order = task_order(tasks, derive_seed(context.recipe.seed, stage.name, step), stage.max_draws)
    groups: list[RolloutGroup] = []
    drawn = 0
    while drawn < len(order):
        missing = stage.prompts_per_step - sum(group.dropped is None for group in groups)
        if missing <= 0:
            break
        wave = order[drawn : drawn + missing]
        drawn += len(wave)
        async with asyncio.TaskGroup() as running:
            pending = [running.create_task(sample_group(context, stage, step, task)) for task in wave]
        groups += [task.result() for task in pending]
    return groups


async def sample_group(context: RunContext, stage: RlStage, step: int, task: Task) -> RolloutGroup:
    """One prompt's rollouts, by the stage's group sampling."""

    async def generate(indices: Sequence[int]) -> Sequence[Trajectory]:
        requests = [context.request(stage.name, task, sample=index, step=step) for index in indices]
        return await context.rollouts.run(requests)

    return await make_sampler(stage.group).sample(generate, score)


def make_sampler(group: GroupConfig) -> BalancedSampler | UniformSampler:
    """The group sampling that a recipe asks for."""
    if group.kind == "uniform":
        return UniformSampler(n=group.n)
    return BalancedSampler(
        n=group.n, max_samples=group.max_samples, stride=group.stride, p_min=group.p_min, p_max=group.p_max
    )


def score(trajectory: Trajectory) -> Scored:
    """What group sampling looks at."""
    return Scored(
        index=trajectory.lineage.sample, reward=trajectory.reward.value, status=trajectory.outcome.status
    )


async def run(context: RunContext, stage: RlStage) -> Mapping[str, Any]:
    """Train for `stage.steps` steps; every step is checkpointed, finished rollouts are kept."""
    tasks = context.tasks("train", stage.tasks)
    folder = context.checkpoint_folder(stage.name)
    backend = await context.in_training_thread(open_backend, context, stage)
    reference = await context.in_training_thread(open_reference, context, stage)
    begin, totals = resume(backend, folder)
    with (
        context.progress.track(stage.name, stage.steps) as bar,
        context.metrics(stage.name, begin or None) as metrics,
    ):
        bar.update(begin, stage.steps)
        for step in range(begin, stage.steps):
            await context.update_weights(backend.state_dict(), stage.name, step)
            groups = await collect_groups(context, stage, step, tasks)
            report = await context.in_training_thread(train_on, backend, groups, stage, reference)
            figures = group_figures(groups)
            totals["rollouts"] += int(figures["rollouts"])
            totals["sampled_tokens"] += int(figures["sampled_tokens"])
            totals["trained_rollouts"] += int(report.get("rollouts", 0))
            metrics.log(step + 1, {**report, **figures})
            backend.save_checkpoint(step_folder(folder, step + 1), {"step": step + 1, "totals": totals})
            keep_newest(folder, 2)
            bar.advance()
    backend.export_hf(context.model_folder(stage.name))
    return {"steps": stage.steps, "tasks": len(tasks), **totals}


def open_backend(context: RunContext, stage: RlStage) -> TorchBackend:
    return context.backend(stage.name, stage.init, stage.optimizer, stage.steps * stage.passes, stage)


def open_reference(context: RunContext, stage: RlStage) -> Reference | None:
    """The frozen initial model that `kl` holds the trained one near to; None without that term."""
    return open_backend(context, stage).logprobs if stage.kl else None


def resume(backend: TorchBackend, folder: Path) -> tuple[int, dict[str, int]]:
    """Load the newest checkpoint; the number of steps that are done, and what they came to.

    A step without a trainable group takes no optimiser step, so the count is kept beside the backend's own.
    """
    found = step_folders(folder)
    if not found:
        return 0, {"rollouts": 0, "sampled_tokens": 0, "trained_rollouts": 0}
    extra = backend.load_checkpoint(found[-1])
    return int(extra["step"]), dict(extra["totals"])


def train_on(
    backend: TorchBackend, groups: Sequence[RolloutGroup], stage: RlStage, reference: Reference | None
) -> dict[str, float]:
    """One step on the groups that passed the filter; nothing is learnt where none did."""
    chosen = [
        [
            Rollout(reward=trajectory.reward.value, samples=build_samples(trajectory).samples)
            for trajectory in group.selected
            if trajectory.reward.value is not None
        ]
        for group in groups
        if group.dropped is None
    ]
    if not chosen:
        return {}
    grpo = GrpoConfig(entropy_coef=stage.entropy, kl_coef=stage.kl)
    return rl_step(backend, chosen, RlConfig(grpo=grpo, passes=stage.passes), reference)


def group_figures(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """What a step's rollouts were like, over everything generated."""
    everything = [trajectory for group in groups for trajectory in group.generated]
    rewards = [t.reward.value for t in everything if t.reward.value is not None]
    dropped = count(group.dropped for group in groups if group.dropped is not None)
    return {
        "rollouts": len(everything),
        "groups": len(groups),
        "groups_trained": sum(group.dropped is None for group in groups),
        "success": sum(value > 0 for value in rewards) / max(1, len(rewards)),
        "early_stopped": sum(group.early_stopped for group in groups) / max(1, len(groups)),
        "sampled_tokens": sum(int(c.completion_ids.size) for t in everything for c in t.calls),
        "turns": sum(len(t.calls) for t in everything) / max(1, len(everything)),
        "aborted": sum(t.outcome.status == "aborted" for t in everything),
        "weight_version": max((c.weight_version for t in everything for c in t.calls), default=0),
        **{f"dropped_{reason}": number for reason, number in dropped.items()},
    }
