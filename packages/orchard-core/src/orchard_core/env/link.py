"""How a sandbox handle gets at a live connection: one that can't be replaced, or one that is dialled again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from orchard_core.env.connection import Connection
from orchard_core.env.dial import Address, dial
from orchard_core.env.errors import SandboxGoneError, SandboxIdentityError, SandboxUnreachableError
from orchard_core.env.proving import Credentials
from orchard_core.env.tunnels import Tunnels

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0


class Link(Protocol):
    """The way to one sandbox."""

    @property
    def resumable(self) -> bool:
        """Whether a lost connection can be replaced, so that calls may be taken up again."""
        ...

    @property
    def tunnels(self) -> Tunnels: ...

    async def connection(self) -> Connection:
        """A live connection. Raises SandboxGoneError when there is no sandbox any more."""
        ...

    async def close(self) -> None:
        """Close the connection; the sandbox itself is the provider's business."""
        ...


class FixedLink:
    """One connection, which lives and dies with its sandbox."""

    resumable = False

    def __init__(self, connection: Connection, tunnels: Tunnels) -> None:
        self._connection = connection
        self.tunnels = tunnels

    async def connection(self) -> Connection:
        self._connection.check()
        return self._connection

    async def close(self) -> None:
        self._connection.shut("it was closed")
        await self.tunnels.close()


@dataclass(frozen=True, slots=True)
class Target:
    """Where a sandbox is at present, and how it is known."""

    address: Address
    credentials: Credentials


class RedialledLink:
    """Connects anew whenever the connection is lost, for as long as the sandbox exists.

    `connect()` makes a connection. It raises SandboxUnreachableError when another try may help; any
    other error ends the matter. `patience_s` bounds the tries of one call.
    """

    resumable = True

    def __init__(
        self, connect: Callable[[], Awaitable[Connection]], tunnels: Tunnels, *, patience_s: float = 60.0
    ) -> None:
        self._connect = connect
        self._patience_s = patience_s
        self._current: Connection | None = None
        self._lock = asyncio.Lock()
        self._closed = False
        self.tunnels = tunnels

    async def connection(self) -> Connection:
        current = self._current
        if current is not None and not current.lost.is_set():
            return current
        async with self._lock:
            if self._closed:
                raise SandboxGoneError("the sandbox is gone: it was closed")
            current = self._current
            if current is not None:
                if not current.lost.is_set():
                    return current
                if current.farewell is not None:
                    current.check()
            self._current = await self._reconnect()
            return self._current

    def cut(self) -> None:
        """Break the present connection; the next call makes another one, or learns that there is no sandbox."""
        if self._current is not None:
            self._current.shut("its connection was cut")

    async def close(self) -> None:
        self._closed = True
        if self._current is not None:
            self._current.shut("it was closed")
        await self.tunnels.close()

    async def _reconnect(self) -> Connection:
        deadline = time.monotonic() + self._patience_s
        pause = _FIRST_PAUSE_S
        while True:
            try:
                connection = await self._connect()
                for port in self.tunnels.ports:
                    await connection.call({"op": "listen", "port": port})
                return connection
            except SandboxUnreachableError:
                if time.monotonic() + pause > deadline:
                    raise
            # With jitter, so that the clients of a service that restarts don't come all at once.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE_S)


def dialled_link(locate: Callable[[], Awaitable[Target]], *, patience_s: float = 60.0) -> RedialledLink:
    """A link to a listening sandboxd.

    `locate()` is the provider's word on where the sandbox is; it raises SandboxGoneError, with the true
    reason, once there is none, and SandboxUnreachableError while it can't tell.
    """
    tunnels = Tunnels()

    async def connect() -> Connection:
        target = await locate()
        try:
            return await dial(target.address, target.credentials, tunnels.on_connect)
        except SandboxIdentityError as error:
            # Its address may have passed to another sandbox since; the provider knows better by now.
            if await locate() == target:
                raise
            raise SandboxUnreachableError(str(error)) from error

    return RedialledLink(connect, tunnels, patience_s=patience_s)
