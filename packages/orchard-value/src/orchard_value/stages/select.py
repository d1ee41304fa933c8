"""The select stage: of each task's candidates the value model picks one; success of the picked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from orchard_core.errors import UsageError
from orchard_core.pipeline.context import RunContext
from orchard_core.recipe import SelectStage
from orchard_core.trajectory.types import Trajectory
from orchard_value.metrics import calibration, selection_report
from orchard_value.model import score
from orchard_value.sequences import check_no_leakage, labels, usable


async def run(context: RunContext, stage: SelectStage) -> Mapping[str, Any]:
    """Judge the selection among the first `stage.n` rollouts of each task, paired with their mean.

    A task with fewer than n rollouts that have a reward is left out, and counted.
    """
    found = await asyncio.to_thread(context.store.query, run=context.run_id, stage=stage.source)
    value_stage = next(s for s in context.recipe.stages if s.name == stage.value)
    for source in getattr(value_stage, "sources", ()):
        trained = await asyncio.to_thread(context.store.query, run=context.run_id, stage=source)
        check_no_leakage(trained, found)
    candidates, left_out = complete(found, stage.n)
    if not candidates:
        raise UsageError(f"no task of stage {stage.source!r} has {stage.n} rollouts with a reward")
    scores = await context.in_training_thread(score, context.model_folder(stage.value), candidates)
    truth = labels(candidates)
    report = selection_report(scores, truth, [t.task_id for t in candidates], stage.n, context.recipe.seed)
    return {
        "success": report.selected.mean,
        "ci_low": report.selected.low,
        "ci_high": report.selected.high,
        "n": report.selected.n,
        "left_out": left_out,
        "pass_at_1": report.pass_at_1.mean,
        "oracle": report.oracle.mean,
        "auc": report.auc,
        "brier": report.brier,
        "calibration": [asdict(bucket) for bucket in calibration(scores, truth)],
        "paired": {
            "baseline": report.pass_at_1.mean,
            "difference": report.gain.mean,
            "ci_low": report.gain.low,
            "ci_high": report.gain.high,
            "n": report.gain.n,
        },
    }


def complete(trajectories: Sequence[Trajectory], n: int) -> tuple[list[Trajectory], int]:
    """The first n usable rollouts of each task that has as many, and the number of other tasks."""
    by_task: dict[str, list[Trajectory]] = {}
    for trajectory in sorted(trajectories, key=lambda t: (t.task_id, t.lineage.sample)):
        by_task.setdefault(trajectory.task_id, [])
        if usable([trajectory]):
            by_task[trajectory.task_id].append(trajectory)
    whole = [found[:n] for found in by_task.values() if len(found) >= n]
    return [trajectory for group in whole for trajectory in group], len(by_task) - len(whole)
