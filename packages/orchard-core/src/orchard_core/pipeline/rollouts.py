"""Runs the rollouts of a stage: those already in the store are taken from it, the others are run and stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from orchard_core.pipeline.writer import StoreWriter
from orchard_core.rollout.runner import RolloutRequest, RolloutRunner
from orchard_core.rollout.scheduler import run_with_retries
from orchard_core.trajectory.store import TrajectoryStore
from orchard_core.trajectory.types import Trajectory

OnDone = Callable[[Trajectory], None]
INFRASTRUCTURE_RETRIES = 1


class RolloutService:
    """Bounded, durable execution of rollouts for all stages of a run.

    The bound on concurrency holds over all callers together, so that groups which are sampled
    side by side share the machine.
    """

    def __init__(
        self, runner: RolloutRunner, store: TrajectoryStore, writer: StoreWriter, concurrency: int
    ) -> None:
        self._runner = runner
        self._store = store
        self._writer = writer
        self._slots = asyncio.Semaphore(concurrency)

    async def run(
        self, requests: Sequence[RolloutRequest], on_done: OnDone | None = None
    ) -> list[Trajectory]:
        """The trajectories of the requests, in their order; each is durable before `on_done` sees it."""
        known = await asyncio.to_thread(self._load, [request.id for request in requests])
        if on_done is not None:
            for trajectory in known.values():
                on_done(trajectory)

        async def finish(request: RolloutRequest) -> None:
            async with self._slots:
                trajectory = await run_with_retries(request, self._runner, INFRASTRUCTURE_RETRIES)
            await self._writer.add(trajectory)
            known[request.id] = trajectory
            if on_done is not None:
                on_done(trajectory)

        async with asyncio.TaskGroup() as group:
            for request in requests:
                if request.id not in known:
                    group.create_task(finish(request))
        return [known[request.id] for request in requests]

    def _load(self, ids: Sequence[str]) -> dict[str, Trajectory]:
        return {trajectory.id: trajectory for trajectory in self._store.query(ids=list(ids))}
