"""The sft stage: supervised fine-tuning on stored trajectories."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from orchard_core.errors import UsageError
from orchard_core.pipeline.context import RunContext
from orchard_core.pipeline.seeds import derive_seed
from orchard_core.recipe import SftStage
from orchard_core.train.algorithms.sft import sft
from orchard_core.train.loops import SftConfig, run_sft
from orchard_core.trajectory.samples import build_samples


async def run(context: RunContext, stage: SftStage) -> Mapping[str, Any]:
    """Train on the trajectories of `stage.source` and save the model under the stage's name."""
    trajectories = await asyncio.to_thread(context.store.query, run=context.run_id, stage=stage.source)
    usable = [t for t in trajectories if t.outcome.status != "aborted"]
    if not usable:
        raise UsageError(f"stage {stage.name!r} finds no trajectories of stage {stage.source!r}")
    usable.sort(key=lambda t: t.id)
    reports = [build_samples(trajectory.calls, trajectory) for trajectory in usable]
    samples = [sample for report in reports for sample in report.samples]
    context.release_engine()
    backend = context.backend(stage.init, stage.optimizer, derive_seed(context.recipe.seed, stage.name))
    config = SftConfig(epochs=stage.epochs, batch_tokens=stage.batch_tokens, seed=derive_seed(context.recipe.seed, stage.name, "order"))
    with context.progress.track(stage.name, 0) as bar, context.metrics(stage.name) as metrics:
        summary = await context.in_training_thread(
            run_sft, backend, sft(samples), config, metrics, bar.update, context.checkpoints(stage.name)
        )
    backend.export_hf(context.model_folder(stage.name))
    return {
        "trajectories": len(usable),
        "samples": len(samples),
        "trained_tokens": sum(r.trained_tokens for r in reports),
        "dropped_tokens": sum(sum(r.dropped.values()) for r in reports),
        **summary,
    }
