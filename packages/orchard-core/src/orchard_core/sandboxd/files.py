"""Single files: read, atomic write, list."""

from __future__ import annotations

import errno
import os
import stat

from . import wire
from .mux import Handler, Stream
from .output import send_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# Failures of the sandbox, not of the path that was asked for.
_NOT_THE_PATH = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.ENFILE,
    errno.EMFILE,
    errno.EAGAIN,
    errno.ENOMEM,
)


def describe(error: OSError, path: str) -> tuple[str, str]:
    """An OSError as an error code and a sentence."""
    code = "sandbox" if error.errno in _NOT_THE_PATH else "file"
    return code, f"{path} in the sandbox: {error.strerror or error}"


class ReadFile(Handler):
    """Sends a regular file piece by piece, as the client takes it."""

    def __init__(self, stream: Stream, path: str, offset: int = 0) -> None:
        self._stream = stream
        self._path = path
        # O_NONBLOCK: opening a FIFO must not hang the daemon.
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            kind = "a directory" if stat.S_ISDIR(os.fstat(self._fd).st_mode) else "not a regular file"
            os.close(self._fd)
            raise OSError(errno.EINVAL, f"it is {kind}")
        try:
            os.lseek(self._fd, offset, os.SEEK_SET)
        except (OSError, OverflowError):
            os.close(self._fd)
            raise
        stream.handler = self
        self.on_credit()

    def on_credit(self) -> None:
        while self._stream.credit > 0:
            try:
                data = os.read(self._fd, min(wire.CHUNK, self._stream.credit))
            except OSError as error:
                os.close(self._fd)
                self._stream.error(*describe(error, self._path))
                return
            if not data:
                os.close(self._fd)
                self._stream.result({})
                return
            self._stream.send(wire.CH_PLAIN, data)

    def on_reset(self) -> None:
        os.close(self._fd)


class WriteFile(Handler):
    """Takes a file's bytes into a temporary neighbour and renames it over the target at the end."""

    def __init__(self, stream: Stream, path: str, mode: int) -> None:
        self._stream = stream
        self._target = os.path.realpath(path)
        if os.path.isdir(self._target):
            raise OSError(errno.EISDIR, "it is a directory")
        folder, name = os.path.split(self._target)
        os.makedirs(folder, exist_ok=True)
        # Not to be guessed: opening a FIFO that a command put there would hang the daemon.
        self._temporary = os.path.join(folder, f".{name[:48]}.{os.urandom(8).hex()}.part")
        self._fd = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        self._mode = mode & 0o7777
        stream.handler = self

    def on_data(self, data: bytes) -> None:
        try:
            left = data
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            self._fail(error)
            return
        self._stream.consumed(len(data))

    def on_end(self) -> None:
        try:
            os.fchmod(self._fd, self._mode)
            os.rename(self._temporary, self._target)
        except OSError as error:
            self._fail(error)
            return
        os.close(self._fd)
        self._stream.result({})

    def on_reset(self) -> None:
        os.close(self._fd)
        os.unlink(self._temporary)

    def _fail(self, error: OSError) -> None:
        self.on_reset()
        self._stream.error(*describe(error, self._target))


def list_files(stream: Stream, path: str) -> None:
    """Send the entries of a directory (or the one of a file), sorted by name."""
    if stat.S_ISDIR(os.stat(path).st_mode):
        paths = [os.path.join(path, name) for name in sorted(os.listdir(path))]
    else:
        paths = [path]
    entries = []
    for entry in paths:
        try:
            entries.append(_entry(entry))
        except FileNotFoundError:
            continue  # removed while we were listing
    send_all(stream, wire.pack(entries))


def _entry(path: str) -> dict[str, Any]:
    info = os.lstat(path)
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    kind = kinds.get(stat.S_IFMT(info.st_mode), "other")
    return {
        "path": path,
        "kind": kind,
        "size": info.st_size,
        "mode": stat.S_IMODE(info.st_mode),
        "mtime": info.st_mtime,
        "link_target": os.readlink(path) if kind == "symlink" else None,
    }
