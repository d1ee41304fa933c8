"""Runs the rollouts of a stage: those already in the store are taken from it, the others are run and stored."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from orchard_core.pipeline.writer import StoreWriter
from orchard_core.rollout.runner import RolloutRequest, RolloutRunner
from orchard_core.rollout.scheduler import run_many
from orchard_core.trajectory.store import TrajectoryStore
from orchard_core.trajectory.types import Trajectory

log = logging.getLogger(__name__)

OnDone = Callable[[Trajectory], None]


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
        self._concurrency = concurrency

    async def run(
        self, requests: Sequence[RolloutRequest], on_done: OnDone | None = None
    ) -> list[Trajectory]:
        """The trajectories of the requests, in their order."""
        known = await asyncio.to_thread(self._load, [request.id for request in requests])
        for trajectory in known.values():
            if on_done is not None:
                on_done(trajectory)
        missing = [request for request in requests if request.id not in known]

        async def finish(trajectory: Trajectory) -> None:
            await self._writer.add(trajectory)
            known[trajectory.id] = trajectory
            if on_done is not None:
                on_done(trajectory)

        await run_many(
            missing, self._runner, concurrency=self._concurrency, on_done=finish, slots=self._slots
        )
        return [known[request.id] for request in requests]

    def _load(self, ids: Sequence[str]) -> dict[str, Trajectory]:
        return {trajectory.id: trajectory for trajectory in self._store.query(ids=ids)}
