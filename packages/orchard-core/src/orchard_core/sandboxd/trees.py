"""Directory trees as tar streams. The tar work happens in a forked child, so it may block."""

from __future__ import annotations

import os

from . import process, wire
from .loop import READ, WRITE
from .mux import Handler, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Loop
    from .reaper import Reaper


def extract(target: str) -> None:
    """Unpack the tar on stdin into `target`; the client made it, and everything here is the sandbox's own."""
    import tarfile

    os.makedirs(target, exist_ok=True)
    with tarfile.open(fileobj=os.fdopen(0, "rb"), mode="r|") as tar:
        # Newer Pythons filter by default, which would change modes and drop absolute links.
        tar.extraction_filter = lambda member, _path: member
        tar.extractall(target)


def archive(source: str) -> None:
    """Write `source` as a tar to stdout: files, directories and symlinks; other kinds are left out."""
    import tarfile

    def add(tar: tarfile.TarFile, path: str, name: str) -> None:
        tar.inodes = {}  # type: ignore[attr-defined] # so that hard links travel as plain files
        member = tar.gettarinfo(path, name)
        if member is None or not (member.isreg() or member.isdir() or member.issym()):
            return
        if member.isreg():
            with open(path, "rb") as file:
                tar.addfile(member, file)
            return
        tar.addfile(member)
        if member.isdir():
            for child in sorted(os.listdir(path)):
                add(tar, os.path.join(path, child), name + "/" + child)

    os.listdir(source)
    with tarfile.open(fileobj=os.fdopen(1, "wb"), mode="w|", format=tarfile.PAX_FORMAT) as tar:
        add(tar, source, ".")


class TreeJob(Handler):
    """Connects a stream to the forked child's stdin or stdout, and reports how the child ended."""

    def __init__(
        self, loop: Loop, reaper: Reaper, stream: Stream, call: Callable[[], None], path: str, upload: bool
    ):
        self._loop = loop
        self._stream = stream
        self._path = path
        self._upload = upload
        self._queue: list[bytes] = []
        self._ended = False
        self._status: int | None = None
        theirs_in, ours_in = os.pipe()
        ours_out, theirs_out = os.pipe()
        self._errors, theirs_err = os.pipe()
        given = (theirs_in, theirs_out, theirs_err)
        try:
            self._pid = process.spawn_function(call, given)
        except OSError:
            os.close(self._errors)
            os.close(ours_in if upload else ours_out)
            raise
        finally:
            for fd in (*given, ours_out if upload else ours_in):
                os.close(fd)
        reaper.began(self._pid, self._on_exit)
        self._fd = ours_in if upload else ours_out
        os.set_blocking(self._fd, False)
        os.set_blocking(self._errors, False)
        stream.handler = self
        if not upload:
            self.on_credit()

    def on_data(self, data: bytes) -> None:
        if not self._upload or self._fd < 0:
            self._stream.consumed(len(data))
            return
        self._queue.append(data)
        self._write()

    def on_end(self) -> None:
        self._ended = True
        if self._upload:
            self._write()

    def on_credit(self) -> None:
        if not self._upload and self._fd >= 0:
            self._loop.watch(self._fd, READ, self._read)

    def on_reset(self) -> None:
        self._close()
        if self._status is None:
            os.kill(self._pid, 9)
        else:
            self._settle()

    def _write(self, _events: int = 0) -> None:
        while self._queue and self._fd >= 0:
            data = self._queue[0]
            try:
                written = os.write(self._fd, data)
            except BlockingIOError:
                self._loop.watch(self._fd, WRITE, self._write)
                return
            except BrokenPipeError:
                self._close()
                return
            self._stream.consumed(written)
            self._queue[0] = data[written:]
            if not self._queue[0]:
                self._queue.pop(0)
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            if self._ended:
                self._close()

    def _read(self, _events: int) -> None:
        if self._stream.credit <= 0:
            self._loop.unwatch(self._fd)
            return
        try:
            data = os.read(self._fd, min(wire.CHUNK, self._stream.credit))
        except BlockingIOError:
            return
        if data:
            self._stream.send(wire.CH_PLAIN, data)
        else:
            self._close()
            self._settle()

    def _close(self) -> None:
        if self._fd >= 0:
            self._loop.unwatch(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _on_exit(self, status: int) -> None:
        self._status = status
        self._settle()

    def _settle(self) -> None:
        """Answer once the child has ended and, for a download, its last byte was sent."""
        if self._status is None or (not self._upload and self._fd >= 0):
            return
        self._close()
        try:
            reason = os.read(self._errors, 4096).decode("utf-8", "replace")
        except BlockingIOError:
            reason = ""
        os.close(self._errors)
        if self._stream.number not in self._stream.connection.streams:
            return
        if self._status == 0:
            self._stream.result({})
        else:
            last = reason.strip().splitlines()[-1:] or ["the copy was killed"]
            self._stream.error("file", f"copying {self._path} in the sandbox failed: {last[0]}")
