"""Group commit into the trajectory store: a rollout counts as finished once it is durable."""

from __future__ import annotations

import asyncio
from types import TracebackType

from orchard_core.trajectory.store import TrajectoryStore
from orchard_core.trajectory.types import Trajectory


class StoreWriter:
    """Appends trajectories as they come; those that arrive during a commit share the next one.

    An async context manager. `add` returns when the trajectory is durable and raises what the
    commit raised. Leaving the context commits what is pending.
    """

    def __init__(self, store: TrajectoryStore) -> None:
        self._store = store
        self._pending: list[tuple[Trajectory, asyncio.Future[None]]] = []
        self._wake = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> StoreWriter:
        self._task = asyncio.create_task(self._run(), name="store-writer")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await self._task

    async def add(self, trajectory: Trajectory) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append((trajectory, done))
        self._wake.set()
        # A caller that is cancelled must not cancel the commit that others share.
        await asyncio.shield(done)

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            batch, self._pending = self._pending, []
            if batch:
                await self._commit(batch)
            if self._closing and not self._pending:
                return

    async def _commit(self, batch: list[tuple[Trajectory, asyncio.Future[None]]]) -> None:
        trajectories = [trajectory for trajectory, _ in batch]
        (error,) = await asyncio.gather(
            asyncio.to_thread(self._store.append, trajectories), return_exceptions=True
        )
        for _, done in batch:
            if done.done():
                continue
            if isinstance(error, BaseException):
                done.set_exception(error)
            else:
                done.set_result(None)
