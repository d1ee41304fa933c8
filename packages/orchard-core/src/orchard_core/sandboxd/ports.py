"""Connections that a client makes to ports inside the sandbox, and the look outwards for the egress check."""

from __future__ import annotations

import _socket as socket
import errno
import os

from .loop import WRITE
from .mux import Handler, Stream
from .tunnel import Carrier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Loop

_VERDICTS = {
    0: "open",
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timeout",
}


def connect(loop: Loop, stream: Stream, port: int) -> None:
    """Carry the stream's bytes to and from 127.0.0.1:`port`."""

    def on_outcome(sock: socket.socket | None, code: int) -> None:
        if stream.number not in stream.connection.streams:
            if sock is not None:
                sock.close()
        elif sock is None:
            stream.error("port", f"nothing answers on port {port} of the sandbox ({os.strerror(code)})")
        else:
            Carrier(loop, stream, sock, waiting.data, waiting.ended)

    waiting = _Waiting(stream)
    _Dial(loop, "127.0.0.1", port, 10.0, on_outcome)


def probe(loop: Loop, stream: Stream, host: str, port: int, timeout_s: float) -> None:
    """Try to reach a TCP address from inside: open, refused, timeout, or unreachable."""
    try:
        socket.inet_pton(_family(host), host)
    except OSError:
        # A name would have to be resolved, for which everything else would wait.
        stream.error("usage", f"{host!r} is no IP address")
        return

    def on_outcome(sock: socket.socket | None, code: int) -> None:
        if sock is not None:
            sock.close()
        stream.result({"verdict": _VERDICTS.get(code, "unreachable")})

    _Dial(loop, host, port, timeout_s, on_outcome)


def _family(host: str) -> int:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class _Waiting(Handler):
    """Keeps what comes before the connection stands; credit bounds how much that is."""

    def __init__(self, stream: Stream) -> None:
        self.data: list[bytes] = []
        self.ended = False
        stream.handler = self

    def on_data(self, data: bytes) -> None:
        self.data.append(data)

    def on_end(self) -> None:
        self.ended = True


class _Dial:
    """A non-blocking connect that calls `on_outcome(socket or None, errno)` once."""

    def __init__(
        self,
        loop: Loop,
        host: str,
        port: int,
        timeout_s: float,
        on_outcome: Callable[[socket.socket | None, int], None],
    ) -> None:
        self._loop = loop
        self._on_outcome = on_outcome
        self._sock = socket.socket(_family(host), socket.SOCK_STREAM)
        self._sock.setblocking(False)
        self._timer = loop.after(timeout_s, lambda: self._finish(errno.ETIMEDOUT))
        code = self._sock.connect_ex((host, port))
        if code == errno.EINPROGRESS:
            loop.watch(self._sock.fileno(), WRITE, self._on_ready)
        else:
            self._finish(code)

    def _on_ready(self, _events: int) -> None:
        self._finish(self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    def _finish(self, code: int) -> None:
        self._timer.cancel()
        self._loop.unwatch(self._sock.fileno())
        if code:
            self._sock.close()
        self._on_outcome(None if code else self._sock, code)
