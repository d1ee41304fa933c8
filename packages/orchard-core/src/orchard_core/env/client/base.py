"""What the parts of the sandbox handle share: requests over the link."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from orchard_core.env.connection import ClientStream
from orchard_core.env.errors import ConnectionLostError, SandboxError, SandboxFileError
from orchard_core.env.link import Link
from orchard_core.sandboxd import wire

MAX_READ = 1 << 30


class LinkUser:
    """Sends requests to one sandbox."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def _open(self, request: dict[str, Any]) -> ClientStream:
        return (await self._link.connection()).open(request)

    async def _call(self, request: dict[str, Any]) -> Any:
        """A request with a plain answer, which may be asked twice without harm: it is, after a lost connection."""
        while True:
            try:
                return await (await self._link.connection()).call(request)
            except ConnectionLostError:
                if not self._link.resumable:
                    raise

    async def _gather(self, request: dict[str, Any]) -> bytes:
        """A request that is answered by bytes, at most 1 GiB of them; asked again after a lost connection."""
        while True:
            try:
                return b"".join([data async for data in incoming(await self._open(request), MAX_READ)])
            except ConnectionLostError:
                if not self._link.resumable:
                    raise


async def upload(stream: ClientStream, source: AsyncIterator[bytes]) -> None:
    """Send all of `source`, then wait for the answer; an early refusal stops the sending."""
    try:
        async for data in source:
            await stream.send(data)
        stream.end()
        kind, _payload = await stream.receive()
        if kind != wire.RESULT:
            raise SandboxError("sandboxd gave an unexpected answer")
    finally:
        stream.abandon()


async def incoming(stream: ClientStream, limit: int | None) -> AsyncIterator[bytes]:
    """The bytes that a stream brings until its result. Raises SandboxFileError past `limit` bytes."""
    total = 0
    try:
        while True:
            kind, payload = await stream.receive()
            if kind == wire.RESULT:
                return
            total += len(payload) - 1
            if kind != wire.DATA or (limit is not None and total > limit):
                raise SandboxFileError(
                    f"the sandbox sent more than {limit} bytes, the most that one transfer takes"
                )
            yield payload[1:]
    finally:
        stream.abandon()
