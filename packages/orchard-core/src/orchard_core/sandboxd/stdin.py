"""What commands read: bytes from clients' streams, written to a pipe or a terminal as it takes them."""

from __future__ import annotations

import os

from .loop import WRITE
from .mux import Handler, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .loop import Loop


class StdinQueue:
    """A command's input. Each byte's credit goes back to the stream that it came from.

    `fd` is -1 where the command has no input; what comes is then thrown away.
    """

    def __init__(self, loop: Loop, fd: int) -> None:
        self._loop = loop
        self._fd = fd
        self._queue: list[tuple[bytes, Stream]] = []
        self._ended = False

    @property
    def is_open(self) -> bool:
        """Whether the command may still get more."""
        return self._fd >= 0 and not self._ended

    def put(self, data: bytes, stream: Stream) -> None:
        self._queue.append((data, stream))
        self._write()

    def end(self) -> None:
        """No more will come; the command sees the end after what is queued."""
        self._ended = True
        self._write()

    def discard(self) -> None:
        """The command has ended."""
        self._ended = True
        self._close()
        self._write()

    def _write(self, _events: int = 0) -> None:
        while self._queue:
            data, stream = self._queue[0]
            try:
                written = os.write(self._fd, data) if self._fd >= 0 else len(data)
            except BlockingIOError:
                self._loop.watch(self._fd, WRITE, self._write)
                return
            except OSError:
                self._close()  # nobody reads any more
                written = len(data)
            stream.consumed(written)
            if written < len(data):
                self._queue[0] = (data[written:], stream)
            else:
                self._queue.pop(0)
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            if self._ended:
                self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1


class StdinFeed(Handler):
    """A stream that brings input to a command that runs already; its end is the input's end if `last`."""

    def __init__(self, queue: StdinQueue, stream: Stream, last: bool) -> None:
        self._queue = queue
        self._stream = stream
        self._last = last
        stream.handler = self

    def on_data(self, data: bytes) -> None:
        self._queue.put(data, self._stream)

    def on_end(self) -> None:
        if self._last:
            self._queue.end()
        self._stream.result({})
