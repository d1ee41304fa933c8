"""The validate stage: on a sample of tasks, the right result must pass and an empty one must fail."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from orchard_core.domain import Task
from orchard_core.errors import OrchardError, UsageError
from orchard_core.pipeline.capabilities import HasReference
from orchard_core.pipeline.context import RunContext
from orchard_core.pipeline.seeds import derive_seed
from orchard_core.recipe import ValidateStage


class InvalidTaskError(OrchardError):
    """A shipped task is not what it says: its reference fails, or doing nothing passes."""


async def run(context: RunContext, stage: ValidateStage) -> Mapping[str, Any]:
    domain = context.domain
    if not isinstance(domain, HasReference):
        raise UsageError(f"domain {domain.name!r} has no reference results, so it can't be validated")
    reference = domain
    tasks = context.sample(
        [*context.tasks("train"), *context.tasks("held_out")],
        stage.tasks,
        derive_seed(context.recipe.seed, stage.name),
    )
    slots = asyncio.Semaphore(context.recipe.provider.concurrency)

    with context.progress.track(stage.name, len(tasks)) as bar:

        async def check(task: Task) -> None:
            async with slots:
                right = await domain.grade(task, reference.reference(task), context.provider)
                idle = await domain.grade(task, {}, context.provider)
            if right.verdict != "success":
                raise InvalidTaskError(f"the reference result of task {task.id} fails: {right.reason}")
            if idle.verdict != "failure":
                raise InvalidTaskError(f"task {task.id} passes when nothing is done")
            bar.advance()

        async with asyncio.TaskGroup() as group:
            for task in tasks:
                group.create_task(check(task))
    return {"validated": len(tasks)}
