"""The sft stage: supervised fine-tuning on stored trajectories."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from orchard_core.errors import UsageError
from orchard_core.pipeline.context import RunContext
from orchard_core.pipeline.seeds import derive_seed
from orchard_core.pipeline.stages.supervised import fit
from orchard_core.recipe import SftStage
from orchard_core.train.loops import SftConfig
from orchard_core.trajectory.samples import build_samples


async def run(context: RunContext, stage: SftStage) -> Mapping[str, Any]:
    """Train on the trajectories of `stage.source` and save the model under the stage's name."""
    stored = await asyncio.to_thread(context.store.query, run=context.run_id, stage=stage.source)
    usable = sorted((t for t in stored if t.outcome.status != "aborted"), key=lambda t: t.id)
    if not usable:
        raise UsageError(f"stage {stage.name!r} finds no trajectories of stage {stage.source!r}")
    reports = [build_samples(trajectory) for trajectory in usable]
    samples = [sample for report in reports for sample in report.samples]
    config = SftConfig(
        epochs=stage.epochs,
        batch_samples=stage.batch_samples,
        seed=derive_seed(context.recipe.seed, stage.name, "order"),
    )
    steps = await fit(context, stage, samples, config)
    return {
        "trajectories": len(usable),
        "samples": len(samples),
        "steps": steps,
        "trained_tokens": stage.epochs * sum(report.trained_tokens for report in reports),
        "dropped_tokens": sum(sum(report.dropped.values()) for report in reports),
    }
