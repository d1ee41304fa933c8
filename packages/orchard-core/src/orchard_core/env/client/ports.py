"""Ports: those of the sandbox that lead out by a tunnel, and those inside that a client connects to."""

from __future__ import annotations

from orchard_core.env.client.base import LinkUser
from orchard_core.env.connection import ClientStream
from orchard_core.env.errors import SandboxError
from orchard_core.env.handle import Verdict
from orchard_core.errors import UsageError
from orchard_core.sandboxd import wire

_VERDICTS: tuple[Verdict, ...] = ("open", "refused", "timeout", "unreachable")


class PortStream:
    """A connection to a port inside the sandbox."""

    def __init__(self, stream: ClientStream) -> None:
        self._stream = stream

    async def send(self, data: bytes) -> None:
        """Send bytes, waiting while the other side lags."""
        await self._stream.send(data)

    def end(self) -> None:
        """Say that no more bytes will be sent."""
        self._stream.end()

    async def receive(self) -> bytes:
        """The next bytes; empty at the end. Raises SandboxPortError when nothing answers on the port."""
        kind, payload = await self._stream.receive()
        if kind == wire.DATA:
            return payload[1:]
        if kind == wire.END:
            return b""
        raise SandboxError("the connection inside the sandbox was cut off")

    def close(self) -> None:
        """Cut the connection."""
        self._stream.abandon()


class Ports(LinkUser):
    """Tunnels outwards and connections inwards."""

    async def tunnel(self, port: int, target: tuple[str, int]) -> None:
        """Listen on 127.0.0.1:`port` inside; carry each connection to `target` outside."""
        self._link.tunnels.add(port, target)
        try:
            await (await self._link.connection()).call({"op": "listen", "port": port})
        except BaseException:
            self._link.tunnels.remove(port)
            raise

    async def connect(self, port: int) -> PortStream:
        """Connect to 127.0.0.1:`port` inside the sandbox."""
        if not 0 < port < 65536:
            raise UsageError(f"{port} is no port number (1 to 65535)")
        return PortStream(await self._open({"op": "connect", "port": port}))

    async def probe(self, host: str, port: int, *, timeout_s: float = 2.0) -> Verdict:
        """Whether a TCP connection to an IP address can be made from inside."""
        answer = await self._call({"op": "probe", "host": host, "port": port, "timeout_s": float(timeout_s)})
        said = answer.get("verdict") if isinstance(answer, dict) else None
        for verdict in _VERDICTS:
            if verdict == said:
                return verdict
        raise SandboxError("sandboxd gave an unreadable answer to probe")
