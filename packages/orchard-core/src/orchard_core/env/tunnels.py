"""The outer half of tunnels: connects what comes in through a sandbox's port to its target."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from orchard_core.env.connection import ClientStream
from orchard_core.errors import OrchardError, UsageError
from orchard_core.sandboxd import wire

_log = logging.getLogger(__name__)


class Tunnels:
    """Which port leads where, and the connections under way.

    The targets are only those that were added here; a sandbox can't name one.
    """

    def __init__(self) -> None:
        self._targets: dict[int, tuple[str, int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def ports(self) -> tuple[int, ...]:
        """The sandbox's ports that have a target."""
        return tuple(self._targets)

    def add(self, port: int, target: tuple[str, int]) -> None:
        if not 0 < port < 65536:
            raise UsageError(f"{port} is no port number (1 to 65535)")
        if port in self._targets:
            raise UsageError(f"port {port} of the sandbox already has a tunnel")
        self._targets[port] = target

    def remove(self, port: int) -> None:
        self._targets.pop(port, None)

    def on_connect(self, stream: ClientStream, request: dict[str, Any]) -> None:
        """Serve a stream that the sandbox opened."""
        target = self._targets.get(request.get("port", -1)) if request.get("op") == "connect" else None
        if target is None:
            stream.abandon()
            return
        task = asyncio.get_running_loop().create_task(_carry(stream, target))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cut all connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _carry(stream: ClientStream, target: tuple[str, int]) -> None:
    try:
        reader, writer = await asyncio.open_connection(*target)
    except OSError as error:
        _log.warning("tunnel target %s:%d: %s", *target, error)
        stream.abandon()
        return
    outward = asyncio.create_task(_outward(stream, writer))
    inward = asyncio.create_task(_inward(stream, reader))
    try:
        await asyncio.gather(outward, inward)
        stream.close()
    except (OSError, OrchardError):
        pass  # either side went away; the other learns it by the reset
    finally:
        outward.cancel()
        inward.cancel()
        stream.abandon()
        writer.close()
        await asyncio.gather(outward, inward, return_exceptions=True)


async def _outward(stream: ClientStream, writer: asyncio.StreamWriter) -> None:
    while True:
        kind, payload = await stream.receive()
        if kind == wire.DATA:
            writer.write(payload[1:])
            await writer.drain()
        elif kind == wire.END:
            writer.write_eof()
            return
        else:
            raise ConnectionResetError


async def _inward(stream: ClientStream, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(wire.CHUNK):
        await stream.send(data)
    stream.end()
