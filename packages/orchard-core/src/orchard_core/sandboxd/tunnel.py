"""Tunnels: a port inside the sandbox whose connections the client carries on, outside."""

from __future__ import annotations

import _socket as socket
import os

from . import wire
from .loop import READ, WRITE
from .mux import Handler, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .loop import Loop
    from .mux import Connection


class Listeners:
    """The ports that are listened on, and the connection that carries what comes in through each."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._carriers: dict[int, Connection] = {}

    def open(self, stream: Stream, port: int) -> None:
        """Listen on 127.0.0.1:`port` (0: any) for as long as the daemon lives.

        A port whose client has gone may be taken over by another connection.
        """
        carrier = self._carriers.get(port)
        if carrier is not None and not carrier.gone:
            stream.error("usage", f"port {port} of the sandbox already has a tunnel")
            return
        try:
            bound = port if carrier is not None else self._listen(port)
        except OSError as error:
            stream.error(
                "usage", f"port {port} in the sandbox can't be listened on: {os.strerror(error.errno or 0)}"
            )
            return
        self._carriers[bound] = stream.connection
        stream.result({"port": bound})

    def _listen(self, port: int) -> int:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", port))
            sock.listen(128)
        except OSError:
            sock.close()
            raise
        sock.setblocking(False)
        bound: int = sock.getsockname()[1]
        self._loop.watch(sock.fileno(), READ, lambda _events: self._accept(sock, bound))
        return bound

    def _accept(self, listener: socket.socket, port: int) -> None:
        try:
            fd, _address = listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return  # the peer has already gone, or there are no descriptors left; it may try again
        sock = socket.socket(fileno=fd)
        connection = self._carriers[port]
        if connection.gone:
            sock.close()  # until its client is back, as if nobody listened
        else:
            Carrier(self._loop, connection.open({"op": "connect", "port": port}), sock)


class Carrier(Handler):
    """Carries one accepted connection over one stream, with half-close and back-pressure both ways."""

    def __init__(
        self,
        loop: Loop,
        stream: Stream,
        sock: socket.socket,
        early: Sequence[bytes] = (),
        ended: bool = False,
    ) -> None:
        """`early` is what the stream has brought already; `ended` that it will bring no more."""
        self._loop = loop
        self._stream = stream
        self._sock = sock
        self._fd = sock.fileno()
        self._queue = list(early)
        self._read_ended = False
        self._write_ended = ended
        self._shut = False
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.handler = self
        if early or ended:
            self._write()
        else:
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
