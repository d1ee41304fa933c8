"""Tunnels: a port inside the sandbox whose connections the client carries on, outside."""

from __future__ import annotations

import _socket as socket
import os

from . import wire
from .loop import READ, WRITE
from .mux import Handler, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .loop import Loop
    from .mux import Connection


def listen(loop: Loop, connection: Connection, port: int) -> int:
    """Listen on 127.0.0.1:`port` (0: any) for as long as the daemon lives; returns the port."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(128)
    sock.setblocking(False)
    bound: int = sock.getsockname()[1]

    def on_ready(_events: int) -> None:
        try:
            fd, _address = sock._accept()  # type: ignore[attr-defined]
        except OSError:
            return  # the peer has already gone, or there are no descriptors left; it may try again
        Carrier(loop, connection.open({"op": "connect", "port": bound}), socket.socket(fileno=fd))

    loop.watch(sock.fileno(), READ, on_ready)
    return bound


class Carrier(Handler):
    """Carries one accepted connection over one stream, with half-close and back-pressure both ways."""

    def __init__(self, loop: Loop, stream: Stream, sock: socket.socket) -> None:
        self._loop = loop
        self._stream = stream
        self._sock = sock
        self._fd = sock.fileno()
        self._queue: list[bytes] = []
        self._read_ended = False
        self._write_ended = False
        self._shut = False
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.handler = self
        self._rewatch()

    def on_data(self, data: bytes) -> None:
        self._queue.append(data)
        self._write()

    def on_end(self) -> None:
        self._write_ended = True
        self._write()

    def on_credit(self) -> None:
        self._rewatch()

    def on_reset(self) -> None:
        self._drop()

    def _rewatch(self) -> None:
        events = 0
        if not self._read_ended and self._stream.credit > 0:
            events |= READ
        if self._queue:
            events |= WRITE
        if events:
            self._loop.watch(self._fd, events, self._on_ready)
        else:
            self._loop.unwatch(self._fd)

    def _on_ready(self, events: int) -> None:
        if events & WRITE:
            self._write()
        if events & ~WRITE and self._fd >= 0:
            self._read()

    def _read(self) -> None:
        if self._read_ended or self._stream.credit <= 0:
            self._rewatch()
            return
        try:
            data = self._sock.recv(min(wire.CHUNK, self._stream.credit))
        except BlockingIOError:
            return
        except OSError:
            self._abort()
            return
        if data:
            self._stream.send(wire.CH_PLAIN, data)
        else:
            self._read_ended = True
            self._stream.end()
        self._settle()

    def _write(self) -> None:
        try:
            while self._queue:
                sent = self._sock.send(self._queue[0])
                self._stream.consumed(sent)
                self._queue[0] = self._queue[0][sent:]
                if not self._queue[0]:
                    self._queue.pop(0)
            if self._write_ended and not self._shut:
                self._shut = True
                self._sock.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            self._rewatch()
            return
        except OSError:
            self._abort()
            return
        self._settle()

    def _settle(self) -> None:
        if self._read_ended and self._shut:
            self._drop()
            self._stream.close()
        else:
            self._rewatch()

    def _abort(self) -> None:
        self._drop()
        self._stream.reset()

    def _drop(self) -> None:
        self._loop.unwatch(self._fd)
        self._sock.close()
        self._fd = -1


def loopback_port_error(error: OSError, port: int) -> str:
    """Why a port could not be listened on."""
    return f"port {port} in the sandbox can't be listened on: {os.strerror(error.errno or 0)}"
