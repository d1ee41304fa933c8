"""The daemon's end of the multiplexed connection: streams with credit-based flow control."""

from __future__ import annotations

from . import wire
from .loop import READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket
    from collections.abc import Callable
    from typing import Any

    from .loop import Loop


class Handler:
    """What serves one stream; subclasses override what they need."""

    def on_data(self, data: bytes) -> None:
        """The client sent bytes."""

    def on_end(self) -> None:
        """The client will send no more bytes."""

    def on_credit(self) -> None:
        """The client can take more bytes."""

    def on_reset(self) -> None:
        """The client has lost interest; the stream is closed already."""

    def on_lost(self) -> None:
        """The connection broke; the stream is closed already."""
        self.on_reset()


class Stream:
    """One conversation. `send` takes what the client's credit allows, never more."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.handler = Handler()
        self.credit = wire.INITIAL_CREDIT
        self._consumed = 0

    def send(self, channel: int, data: bytes | memoryview) -> int:
        """Send as much of `data` as credit allows; returns how many bytes were taken."""
        taken = 0
        while taken < len(data) and self.credit > 0:
            piece = bytes(data[taken : taken + min(wire.CHUNK, self.credit)])
            self.credit -= len(piece)
            taken += len(piece)
            self.connection.send(wire.DATA, self.number, bytes((channel,)) + piece)
        return taken

    def end(self) -> None:
        self.connection.send(wire.END, self.number)

    def result(self, value: Any) -> None:
        """Answer and close the stream."""
        self.connection.send(wire.RESULT, self.number, wire.pack(value))
        self.close()

    def error(self, code: str, message: str) -> None:
        """Refuse and close the stream. `code` picks the client's error class."""
        self.connection.send(wire.ERROR, self.number, wire.pack({"code": code, "message": message}))
        self.close()

    def reset(self) -> None:
        self.connection.send(wire.RESET, self.number)
        self.close()

    def consumed(self, count: int) -> None:
        """Tell the client, in steps, that `count` more bytes have left this process's memory."""
        self._consumed += count
        if self._consumed >= wire.CREDIT_STEP:
            self.connection.send(wire.CREDIT, self.number, wire.pack(self._consumed))
            self._consumed = 0

    def close(self) -> None:
        self.connection.streams.pop(self.number, None)


class Connection:
    """Frames in and out of one non-blocking socket.

    `on_open(stream, request)` serves what the client begins. When the client is gone or breaks the
    protocol, every stream's handler is reset, the socket is closed and `on_gone(connection)` is called.
    """

    def __init__(
        self,
        loop: Loop,
        sock: Socket,
        on_open: Callable[[Stream, dict[str, Any]], None],
        on_gone: Callable[[Connection], None],
    ) -> None:
        self.streams: dict[int, Stream] = {}
        self.gone = False
        self._loop = loop
        self._sock = sock
        self._on_open = on_open
        self._on_gone = on_gone
        self._parser = wire.FrameParser()
        self._out = bytearray()
        self._next = 2
        self._writing = False

    def start(self) -> None:
        self._loop.watch(self._sock.fileno(), READ, self._on_ready)

    def open(self, request: dict[str, Any]) -> Stream:
        """Begin a stream from this side; the daemon's streams have even numbers."""
        stream = Stream(self, self._next)
        self._next += 2
        self.streams[stream.number] = stream
        self.send(wire.OPEN, stream.number, wire.pack(request))
        return stream

    def send(self, kind: int, stream: int, payload: bytes = b"") -> None:
        """Queue a frame and send what the socket takes. To a client that is gone, nothing."""
        if not self.gone:
            self._out += wire.frame(kind, stream, payload)
            self._flush()

    def feed(self, data: bytes) -> None:
        """Take bytes that came in."""
        try:
            for kind, number, payload in self._parser.feed(data):
                self._dispatch(kind, number, payload)
        except wire.WireError:
            self._lose()

    def _flush(self) -> None:
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self._lose()
            return
        if self._writing != bool(self._out):
            self._writing = bool(self._out)
            self._loop.watch(self._sock.fileno(), READ | (WRITE if self._writing else 0), self._on_ready)

    def _on_ready(self, events: int) -> None:
        if events & WRITE:
            self._flush()
        if events & ~WRITE and not self.gone:
            try:
                data = self._sock.recv(1 << 18)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if data:
                self.feed(data)
            else:
                self._lose()

    def _lose(self) -> None:
        """Mark the client as gone; what follows from it waits until the present callback is done."""
        if not self.gone:
            self.gone = True
            self._loop.unwatch(self._sock.fileno())
            self._loop.after(0, self._close)

    def _close(self) -> None:
        self._sock.close()
        streams, self.streams = list(self.streams.values()), {}
        for stream in streams:
            stream.handler.on_lost()
        self._on_gone(self)

    def _dispatch(self, kind: int, number: int, payload: bytes) -> None:
        if kind == wire.OPEN:
            if number % 2 == 0 or number in self.streams:
                raise wire.WireError("bad stream number")
            stream = self.streams[number] = Stream(self, number)
            request = wire.unpack(payload)
            if not isinstance(request, dict):
                raise wire.WireError("a request is no dict")
            self._on_open(stream, request)
            return
        if kind == wire.BYE:
            self._lose()
            return
        found = self.streams.get(number)
        if found is None:
            return  # it was closed here while this frame was on its way
        if kind == wire.DATA:
            found.handler.on_data(payload[1:])
        elif kind == wire.END:
            found.handler.on_end()
        elif kind == wire.CREDIT:
            found.credit += _count(payload)
            found.handler.on_credit()
        elif kind == wire.RESET:
            found.close()
            found.handler.on_reset()
        else:
            raise wire.WireError(f"unexpected frame type {kind}")


def _count(payload: bytes) -> int:
    count = wire.unpack(payload)
    if not isinstance(count, int) or count < 0:
        raise wire.WireError("bad credit")
    return count
