"""The demonstrate stage: a scripted teacher plays the harness on training tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchard_core.errors import UsageError
from orchard_core.pipeline.capabilities import HasTeacher
from orchard_core.pipeline.context import RunContext, with_engine
from orchard_core.pipeline.stages.evaluate import summarise
from orchard_core.recipe import DemonstrateStage


async def run(context: RunContext, stage: DemonstrateStage) -> Mapping[str, Any]:
    if not isinstance(context.domain, HasTeacher):
        raise UsageError(f"domain {context.domain.name!r} has no scripted teacher; drop the stage")
    tasks = context.tasks("train", stage.tasks)
    await context.use_model("base")
    owners = {}
    requests = []
    for task in tasks:
        for sample in range(stage.per_task):
            request = context.request(stage.name, task, sample=sample)
            owners[request.id] = task
            requests.append(request)
    teacher = context.domain.teacher(owners.__getitem__, stage.teacher, context.recipe.seed)
    requests = [with_engine(request, teacher) for request in requests]
    with context.progress.track(stage.name, len(requests)) as bar:
        trajectories = await context.rollouts.run(requests, on_done=lambda _: bar.advance())
    return summarise(trajectories, context.recipe.seed)
