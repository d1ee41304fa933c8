"""The value stage: trains a value model on all that earlier stages generated, the unused rollouts included."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from orchard_core.pipeline.context import RunContext
from orchard_core.pipeline.seeds import derive_seed
from orchard_core.recipe import ValueStage
from orchard_core.trajectory.types import Trajectory
from orchard_value.training import ValueConfig, train_value


async def run(context: RunContext, stage: ValueStage) -> Mapping[str, Any]:
    """Train on the stages `stage.sources`; the model lies under the stage's name."""
    found: list[Trajectory] = []
    for source in stage.sources:
        found += await asyncio.to_thread(context.store.query, run=context.run_id, stage=source)
    found.sort(key=lambda trajectory: trajectory.id)
    config = ValueConfig(
        epochs=stage.epochs,
        lr=stage.lr,
        seed=derive_seed(context.recipe.seed, stage.name) % (1 << 31),
        threads=context.recipe.engine.train_threads,
    )
    with context.progress.track(stage.name, 0) as bar:
        await context.in_training_thread(
            train_value,
            context.model_folder(stage.init),
            found,
            config,
            context.model_folder(stage.name),
            on_progress=lambda done, total, _: bar.update(done, total),
        )
    return {"trajectories": len(found), "successes": sum(t.reward.verdict == "success" for t in found)}
