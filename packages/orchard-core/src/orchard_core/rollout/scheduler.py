"""Many rollouts at bounded concurrency; a killed run resumes without losing or repeating a finished one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass

from orchard_core.errors import UsageError
from orchard_core.rollout.runner import RolloutRequest, RolloutRunner
from orchard_core.trajectory.types import Trajectory

OnDone = Callable[[Trajectory], Awaitable[None]]


@dataclass(slots=True)
class ScheduleReport:
    """How many rollouts were finished now, skipped as finished before, given up as aborted, and run again."""

    finished: int = 0
    skipped: int = 0
    aborted: int = 0
    retried: int = 0


def _never(_: str) -> bool:
    return False


async def run_many(
    requests: Iterable[RolloutRequest],
    runner: RolloutRunner,
    *,
    concurrency: int,
    on_done: OnDone,
    is_done: Callable[[str], bool] = _never,
    infrastructure_retries: int = 1,
) -> ScheduleReport:
    """Run all requests (taken lazily), at most `concurrency` at a time; `on_done` gets each trajectory.

    `is_done(id)` says that a request's trajectory is stored already. A rollout that an
    infrastructure failure aborted is run again, whole, at most `infrastructure_retries` times;
    nothing else is. The first error of a rollout or of `on_done` cancels the others and is raised.
    Once a rollout has ended, cancelling waits for its `on_done`.
    """
    if concurrency < 1:
        raise UsageError("concurrency must be at least 1")
    report = ScheduleReport()
    pending = _unfinished(requests, is_done, report)
    tasks = [
        asyncio.create_task(_work(pending, runner, on_done, infrastructure_retries, report))
        for _ in range(concurrency)
    ]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return report


def _unfinished(
    requests: Iterable[RolloutRequest], is_done: Callable[[str], bool], report: ScheduleReport
) -> Iterator[RolloutRequest]:
    seen: set[str] = set()
    for request in requests:
        if request.id in seen:
            raise UsageError(f"two rollout requests have the id {request.id!r}")
        seen.add(request.id)
        if is_done(request.id):
            report.skipped += 1
        else:
            yield request


async def _work(
    pending: Iterator[RolloutRequest],
    runner: RolloutRunner,
    on_done: OnDone,
    retries: int,
    report: ScheduleReport,
) -> None:
    for request in pending:
        trajectory = await run_with_retries(request, runner, retries, report)
        await _uncancelled(on_done(trajectory))
        report.finished += 1
        report.aborted += trajectory.outcome.status == "aborted"


async def run_with_retries(
    request: RolloutRequest, runner: RolloutRunner, retries: int, report: ScheduleReport | None = None
) -> Trajectory:
    """Run once, and again while an infrastructure failure aborts it and `retries` are left."""
    trajectory = await runner.run(request)
    for _ in range(retries):
        if trajectory.outcome.status != "aborted":
            break
        if report is not None:
            report.retried += 1
        trajectory = await runner.run(request)
    return trajectory


async def _uncancelled(work: Awaitable[None]) -> None:
    """Await to the end even when cancelled meanwhile, then let the cancellation through."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error from None
        raise
