"""The client's end of the connection to sandboxd, on asyncio.

What comes out of a sandbox is not trusted: frames are bounded, streams are only those that this
side opened (or a tunnel it asked for), and a peer that breaks the protocol loses the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from orchard_core.env.errors import (
    ConnectionLostError,
    ExecConflictError,
    SandboxError,
    SandboxExpiredError,
    SandboxFileError,
    SandboxGoneError,
    SandboxIdentityError,
    SandboxPortError,
    UnknownExecError,
)
from orchard_core.env.proving import Prover
from orchard_core.errors import OrchardError, UsageError
from orchard_core.sandboxd import wire

_ERRORS: dict[str, type[OrchardError]] = {
    "conflict": ExecConflictError,
    "file": SandboxFileError,
    "port": SandboxPortError,
    "sandbox": SandboxError,
    "unknown_exec": UnknownExecError,
    "usage": UsageError,
}
_MAX_PEER_STREAMS = 4096


class ClientStream:
    """One conversation with sandboxd."""

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection = connection
        self._number = number
        self._inbox: deque[tuple[int, bytes]] = deque()
        self._arrived = asyncio.Event()
        self._credit = wire.INITIAL_CREDIT
        self._granted = asyncio.Event()
        self._unacknowledged = 0
        self._allowance = wire.INITIAL_CREDIT
        self.closed = False

    async def receive(self) -> tuple[int, bytes]:
        """The next frame's `(type, payload)`. Raises the typed error that the sandbox answered with.

        The bytes of a DATA frame are acknowledged by the call after it, so a slow reader holds the
        sender back.
        """
        self._acknowledge()
        while not self._inbox:
            self._connection.check()
            self._arrived.clear()
            await self._arrived.wait()
        kind, payload = self._inbox.popleft()
        if kind == wire.DATA:
            self._unacknowledged += len(payload) - 1
        elif kind == wire.ERROR:
            raise _error_of(payload)
        return kind, payload

    async def send(self, data: bytes) -> None:
        """Send bytes, waiting for credit and for the socket."""
        view = memoryview(data)
        while view:
            if self.closed:
                return  # the other side has answered already; it wants no more
            self._connection.check()
            if self._credit <= 0:
                self._granted.clear()
                await self._granted.wait()
                continue
            piece = view[: min(wire.CHUNK, self._credit)]
            view = view[len(piece) :]
            self._credit -= len(piece)
            self._connection.send(wire.DATA, self._number, b"\0" + piece)
            await self._connection.writable()

    def end(self) -> None:
        """Say that no more bytes will be sent."""
        if not self.closed:
            self._connection.send(wire.END, self._number)

    def abandon(self) -> None:
        """Drop the stream, telling the other side unless it is closed."""
        if not self.closed:
            self.close()
            self._connection.send(wire.RESET, self._number)

    def close(self) -> None:
        """Forget the stream."""
        self.closed = True
        self._connection.forget(self._number)
        self.wake()

    def deliver(self, kind: int, payload: bytes) -> None:
        """Take a frame from the connection."""
        if kind == wire.CREDIT:
            self._credit += _credit_of(payload)
            self._granted.set()
            return
        if kind == wire.DATA:
            self._allowance -= len(payload) - 1
            if not payload or self._allowance < 0:
                raise wire.WireError("more bytes than were asked for")
        self._inbox.append((kind, payload))
        if kind in (wire.RESULT, wire.ERROR, wire.RESET):
            self.close()
        self._arrived.set()

    def wake(self) -> None:
        """Let waiters look at the state again."""
        self._arrived.set()
        self._granted.set()

    def _acknowledge(self) -> None:
        if self._unacknowledged >= wire.CREDIT_STEP and not self.closed:
            self._connection.send(wire.CREDIT, self._number, wire.pack(self._unacknowledged))
            self._allowance += self._unacknowledged
            self._unacknowledged = 0


class Connection(asyncio.Protocol):
    """Frames over one transport; `lost` is set, with the reason, when it can be used no more.

    `hello` gives sandboxd's greeting, or None when the connection was lost before it. A listening
    sandboxd greets only after the mutual proof, for which `prover` is needed; `hello` raises
    SandboxIdentityError when it fails.
    """

    def __init__(
        self, on_connect: Callable[[ClientStream, dict[str, Any]], None], prover: Prover | None = None
    ) -> None:
        self.hello: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        self.lost = asyncio.Event()
        self.reason = "sandboxd ended"
        self.farewell: str | None = None  # why the sandbox ended, if it said so
        self.expired = False
        self._on_connect = on_connect
        self._prover = prover
        self._parser = wire.FrameParser()
        self._streams: dict[int, ClientStream] = {}
        self._next = 1
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def open(self, request: dict[str, Any]) -> ClientStream:
        """Begin a conversation with a request."""
        self.check()
        stream = ClientStream(self, self._next)
        self._streams[self._next] = stream
        self._next += 2
        self.send(wire.OPEN, self._next - 2, wire.pack(request))
        return stream

    async def call(self, request: dict[str, Any]) -> Any:
        """A request with a plain answer."""
        stream = self.open(request)
        try:
            kind, payload = await stream.receive()
            if kind != wire.RESULT:
                raise SandboxError("sandboxd gave an unexpected answer")
            return wire.unpack(payload)
        finally:
            stream.abandon()

    def send(self, kind: int, number: int, payload: bytes = b"") -> None:
        if self._transport is not None and not self.lost.is_set():
            self._transport.write(wire.frame(kind, number, payload))

    async def writable(self) -> None:
        """Wait while the socket's buffer is full."""
        await self._writable.wait()

    def check(self) -> None:
        """Raise SandboxGoneError if the sandbox ended, ConnectionLostError if only the connection is lost."""
        if self.farewell is not None:
            kind = SandboxExpiredError if self.expired else SandboxGoneError
            raise kind(f"the sandbox is gone: {self.farewell}")
        if self.lost.is_set():
            raise ConnectionLostError(f"the sandbox is gone: {self.reason}")

    def forget(self, number: int) -> None:
        self._streams.pop(number, None)

    def shut(self, reason: str) -> None:
        """Close from this side; every pending call gets ConnectionLostError with `reason`."""
        if not self.lost.is_set():
            self.reason = reason
            self._lose()
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it
        if self._prover is not None:
            self.send(wire.AUTH, 0, self._prover.begin())

    def data_received(self, data: bytes) -> None:
        try:
            for kind, number, payload in self._parser.feed(data):
                self._dispatch(kind, number, payload)
        except wire.WireError as error:
            self.shut(f"it broke the protocol ({error})")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _lose(self) -> None:
        self.lost.set()
        self._writable.set()
        if not self.hello.done():
            self.hello.set_result(None)
        for stream in list(self._streams.values()):
            stream.wake()

    def _dispatch(self, kind: int, number: int, payload: bytes) -> None:
        if not self.hello.done():
            self._greet(kind, payload)
        elif kind == wire.BYE:
            self.farewell, self.expired = _farewell_of(payload)
            self.shut(self.farewell)
        elif kind == wire.OPEN:
            self._accept(number, wire.unpack(payload))
        else:
            stream = self._streams.get(number)
            if stream is not None:
                stream.deliver(kind, payload)

    def _greet(self, kind: int, payload: bytes) -> None:
        if kind == wire.AUTH and self._prover is not None:
            prover, self._prover = self._prover, None
            try:
                self.send(wire.AUTH, 0, prover.answer(payload))
            except SandboxIdentityError as error:
                self.hello.set_exception(error)
                self.shut(str(error))
        elif kind == wire.HELLO and self._prover is None:
            self.hello.set_result(wire.unpack(payload))
        else:
            raise wire.WireError("it did not begin with a greeting")

    def _accept(self, number: int, request: Any) -> None:
        if number % 2 or number in self._streams or not isinstance(request, dict):
            raise wire.WireError("bad stream from the sandbox")
        stream = ClientStream(self, number)
        self._streams[number] = stream
        if len(self._streams) > _MAX_PEER_STREAMS:
            stream.abandon()
        else:
            self._on_connect(stream, request)


def _credit_of(payload: bytes) -> int:
    count = wire.unpack(payload)
    if not isinstance(count, int) or count < 0:
        raise wire.WireError("bad credit")
    return count


def _farewell_of(payload: bytes) -> tuple[str, bool]:
    said = wire.unpack(payload)
    if not isinstance(said, dict) or not isinstance(said.get("reason"), str):
        raise wire.WireError("bad farewell")
    return str(said["reason"])[:200], said.get("expired") is True


def _error_of(payload: bytes) -> OrchardError:
    answer = wire.unpack(payload)
    if not isinstance(answer, dict):
        return SandboxError("sandboxd gave an unreadable error")
    kind = _ERRORS.get(str(answer.get("code")), SandboxError)
    return kind(str(answer.get("message")))
