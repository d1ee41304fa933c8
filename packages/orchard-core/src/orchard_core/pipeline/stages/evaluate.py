"""The evaluate stage: success of a model on a split, under a harness."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from orchard_core.pipeline.context import RunContext
from orchard_core.recipe import EvaluateStage
from orchard_core.reward.stats import mean_ci
from orchard_core.trajectory.types import Trajectory


async def run(context: RunContext, stage: EvaluateStage) -> Mapping[str, Any]:
    """Roll out every task `samples` times and report mean success with a 95 % interval."""
    tasks = context.tasks(stage.split, stage.tasks)
    await context.use_model(stage.model)
    harness = stage.harness or context.recipe.harnesses[0].label
    requests = [
        context.request(stage.name, task, harness, sample=sample)
        for task in tasks
        for sample in range(stage.samples)
    ]
    with context.progress.track(stage.name, len(requests)) as bar:
        trajectories = await context.rollouts.run(requests, on_done=lambda _: bar.advance())
    return summarise(trajectories, context.recipe.seed)


def summarise(trajectories: Sequence[Trajectory], seed: int) -> dict[str, Any]:
    """Success by task; rollouts without a reward are left out and counted."""
    by_task: dict[str, list[float]] = defaultdict(list)
    packages: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        if trajectory.reward.value is None:
            continue
        won = float(trajectory.reward.verdict == "success")
        by_task[trajectory.task_id].append(won)
        packages[trajectory.tags.get("package", "")].append(won)
    ci = mean_ci(by_task, seed=seed)
    return {
        "success": ci.mean,
        "ci_low": ci.low,
        "ci_high": ci.high,
        "n": len(by_task),
        "rollouts": len(trajectories),
        "without_reward": sum(t.reward.value is None for t in trajectories),
        "turns": sum(len(t.calls) for t in trajectories) / max(1, len(trajectories)),
        "sampled_tokens": sum(int(c.completion_ids.size) for t in trajectories for c in t.calls),
        "by_package": {name: sum(won) / len(won) for name, won in sorted(packages.items())},
        "causes": count(t.outcome.cause for t in trajectories),
    }


def count(names: Any) -> dict[str, int]:
    """How often each name occurs, most frequent first."""
    found: dict[str, int] = defaultdict(int)
    for name in names:
        found[name] += 1
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
