"""Bounded output: what a command wrote, kept as its head and its tail; and the pump that sends bytes away."""

from __future__ import annotations

from . import wire
from .mux import Handler, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Capture:
    """Keeps the first half and the last half of `limit` bytes, and counts what fell out between."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit - limit // 2
        self._tail_limit = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def write(self, data: bytes) -> None:
        self.total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            # Cut rarely, so that many small writes cost linear time.
            if len(self._tail) > 2 * self._tail_limit + 4096:
                self._trim()

    @property
    def kept(self) -> int:
        """How many bytes are kept."""
        return len(self._head) + len(self._tail)

    def finish(self) -> tuple[bytes, int]:
        """The bytes kept, and how many are missing from their middle."""
        self._trim()
        return b"".join((self._head, self._tail)), self.total - self.kept

    def since(self, offset: int) -> tuple[bytes, int, bytes]:
        """What is kept of the bytes from `offset` on: a part, the number of bytes missing after it, and the rest."""
        start = self.total - len(self._tail)
        if offset >= start:
            return b"", 0, bytes(self._tail[offset - start :])
        before = bytes(self._head[offset:])
        return before, start - offset - len(before), bytes(self._tail)

    def forget(self) -> None:
        """Keep nothing; all of it is missing then."""
        self._head, self._tail = bytearray(), bytearray()

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            del self._tail[:excess]


class Pump:
    """Sends queued bytes on a stream as credit comes, then its result."""

    def __init__(self, stream: Stream, on_drained: Callable[[], None] | None = None) -> None:
        self._stream = stream
        self._queue: list[tuple[int, memoryview]] = []
        self._result: dict[str, Any] | None = None
        self._on_drained = on_drained

    @property
    def waiting(self) -> bool:
        return bool(self._queue)

    def put(self, channel: int, data: bytes) -> None:
        if data:
            # A view, since what credit leaves over is cut again and again.
            self._queue.append((channel, memoryview(data)))
            self.push()

    def finish(self, result: dict[str, Any]) -> None:
        """Send `result` once everything queued has gone; the stream is closed with it."""
        self._result = result
        self.push()

    def push(self) -> None:
        """Send what credit allows."""
        blocked = self.waiting
        while self._queue:
            channel, data = self._queue[0]
            taken = self._stream.send(channel, data)
            if taken < len(data):
                self._queue[0] = (channel, data[taken:])
                return
            self._queue.pop(0)
        if self._result is not None:
            result, self._result = self._result, None
            self._stream.result(result)
        elif blocked and self._on_drained is not None:
            self._on_drained()


class _Sending(Handler):
    def __init__(self, pump: Pump) -> None:
        self._pump = pump

    def on_credit(self) -> None:
        self._pump.push()


def send_all(stream: Stream, data: bytes) -> None:
    """Answer with `data`, of any size, and close the stream."""
    pump = Pump(stream)
    stream.handler = _Sending(pump)
    pump.put(wire.CH_PLAIN, data)
    pump.finish({})
