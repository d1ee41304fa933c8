"""What the stages that train on fixed samples share: progress, metrics, checkpoints, the model's folder."""

from __future__ import annotations

from collections.abc import Sequence

from orchard_core.pipeline.context import RunContext
from orchard_core.recipe import PretrainStage, SftStage
from orchard_core.train.algorithms.sft import sft
from orchard_core.train.loops import SftConfig, Weigh, last_checkpoint_step, run_sft, sft_steps
from orchard_core.trajectory.types import Sample


async def fit(
    context: RunContext,
    stage: PretrainStage | SftStage,
    samples: Sequence[Sample],
    config: SftConfig,
    weigh: Weigh = sft,
) -> int:
    """Train `stage.init` on the samples, from the last checkpoint on; returns the number of steps.

    The model lies under the stage's name.
    """
    steps = sft_steps(len(samples), config)
    folder = context.checkpoint_folder(stage.name)
    with (
        context.progress.track(stage.name, steps) as bar,
        context.metrics(stage.name, last_checkpoint_step(folder)) as metrics,
    ):

        def train() -> None:
            backend = context.backend(stage.name, stage.init, stage.optimizer, steps)
            run_sft(
                backend,
                samples,
                config,
                metrics,
                on_progress=lambda done, total, _: bar.update(done, total),
                checkpoint_dir=folder,
                weigh=weigh,
            )
            backend.export_hf(context.model_folder(stage.name))

        await context.in_training_thread(train)
    return steps
