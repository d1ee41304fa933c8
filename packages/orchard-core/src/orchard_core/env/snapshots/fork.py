"""Several sandboxes from one, without a store between."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from typing import IO

from orchard_core.env.handle import Provider, Sandbox
from orchard_core.errors import UsageError

_PIECE = 1 << 20
_SPOOL_IN_MEMORY = 64 << 20


async def fork(sandbox: Sandbox, provider: Provider, count: int) -> list[Sandbox]:
    """`count` new sandboxes that look like `sandbox` does now; it goes on independently of them.

    They are made while the changes are being read. All or none: if one fails, the others are closed.
    """
    if count < 1:
        raise UsageError(f"a fork makes at least one sandbox, not {count}")
    with tempfile.SpooledTemporaryFile(max_size=_SPOOL_IN_MEMORY) as spool:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(_read(sandbox, spool))
            making = [group.create_task(provider.create(sandbox.spec)) for _ in range(count)]
            del reading
        made = [task.result() for task in making]
        size = spool.tell()
        try:
            await asyncio.gather(*(one.apply_changes(_pieces(spool, size)) for one in made))
        except BaseException:
            await asyncio.gather(*(one.close() for one in made), return_exceptions=True)
            raise
    return made


async def _read(sandbox: Sandbox, spool: IO[bytes]) -> None:
    async for data in sandbox.changes():
        spool.write(data)


async def _pieces(spool: IO[bytes], size: int) -> AsyncIterator[bytes]:
    """The spool's bytes; several readers take turns, so each seeks first."""
    at = 0
    while at < size:
        spool.seek(at)
        data = spool.read(_PIECE)
        at += len(data)
        yield data
