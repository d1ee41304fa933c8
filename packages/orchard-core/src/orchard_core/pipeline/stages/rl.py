"""The rl stage: groups of rollouts, a policy-gradient step, new weights, again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any

from orchard_core.domain import Task
from orchard_core.pipeline.context import RunContext
from orchard_core.pipeline.seeds import derive_seed
from orchard_core.pipeline.stages.evaluate import count
from orchard_core.recipe import RlStage
from orchard_core.rollout.sampling import Group, Scored, make_sampler
from orchard_core.train.loops import rl_step
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
        requests = [
            context.request(f"{stage.name}", task, None, sample=index, step=step) for index in indices
        ]
        return await context.rollouts.run(requests)

    return await make_sampler(stage.group).sample(generate, score)


def score(trajectory: Trajectory) -> Scored:
    """What group sampling looks at."""
    return Scored(
        index=trajectory.lineage.sample, reward=trajectory.reward.value, status=trajectory.outcome.status
    )


async def run(context: RunContext, stage: RlStage) -> Mapping[str, Any]:
    """Train for `stage.steps` steps; every step is checkpointed, finished rollouts are kept."""
    tasks = context.tasks("train", stage.tasks)
    backend = context.backend(stage.init, stage.optimizer, derive_seed(context.recipe.seed, stage.name))
    checkpoints = context.checkpoints(stage.name)
    begin = checkpoints.resume(backend)
    await context.use_model(stage.init)
    with context.progress.track(stage.name, stage.steps) as bar, context.metrics(stage.name, begin) as metrics:
        bar.update(begin, stage.steps)
        for step in range(begin, stage.steps):
            await context.update_weights(backend.state_dict(), version=step)
            groups = await collect_groups(context, stage, step, tasks)
            report = await context.in_training_thread(rl_step, backend, trained_groups(groups), stage.loss)
            metrics.log(step, {**report, **group_figures(groups)})
            checkpoints.save(backend, step + 1)
            bar.advance()
    backend.export_hf(context.model_folder(stage.name))
    return {"steps": stage.steps, "tasks": len(tasks)}


def trained_groups(groups: Sequence[RolloutGroup]) -> list[list[Trajectory]]:
    """The selected members of the groups that are not dropped."""
    return [list(group.selected) for group in groups if group.dropped is None]


def group_figures(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """What a step's rollouts were like, over everything generated."""
    everything = [trajectory for group in groups for trajectory in group.generated]
    rewards = [t.reward.value for t in everything if t.reward.value is not None]
    kept = [group for group in groups if group.dropped is None]
    chosen = [t.reward.value for group in kept for t in group.selected if t.reward.value is not None]
    dropped = count(group.dropped for group in groups if group.dropped is not None)
    return {
        "rollouts": len(everything),
        "groups": len(groups),
        "groups_trained": len(kept),
        "success": sum(value > 0 for value in rewards) / max(1, len(rewards)),
        "positive_share": sum(value > 0 for value in chosen) / max(1, len(chosen)),
        "early_stopped": sum(group.early_stopped for group in groups) / max(1, len(groups)),
        "turns": sum(len(t.calls) for t in everything) / max(1, len(everything)),
        "aborted": sum(t.outcome.status == "aborted" for t in everything),
        **{f"dropped_{reason}": number for reason, number in dropped.items()},
    }
