"""What a sandbox's commands changed in its file systems, as a tar stream, and how that is put into another one.

The first member, named `INDEX`, holds a packed dict: the roots, and for every changed directory all of
its names, so that a removal is told too. A file counts as changed when its inode changed (ctime) at or
after the given time: what an image brings was made before the sandbox began, and an overlay file system
makes a new inode for whatever is written to. Files that are mounted into a root, and what lies on
other file systems below it, are not the sandbox's own and are left out.
"""

from __future__ import annotations

import os
import stat

from . import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from tarfile import TarFile
    from typing import Any

INDEX = ".orchard-index"
_BUFFER = 1 << 20


def changes(roots: Sequence[str], since: float) -> None:
    """Write what changed below `roots` since a time (Unix seconds) as a tar to stdout."""
    import io
    import tarfile

    names: dict[str, list[bytes]] = {}
    found: list[tuple[str, os.stat_result]] = []
    for root in sorted({os.path.realpath(root) for root in roots}):
        if os.path.isdir(root) and not any(os.path.realpath(root).startswith(path + "/") for path in names):
            for path, info, entries in _walk(root, os.stat(root).st_dev):
                if info.st_ctime_ns >= int(since * 1e9):
                    found.append((path, info))
                    if entries is not None:
                        names[path] = entries
    index = wire.pack({"version": 1, "roots": list(roots), "names": names})
    out = os.fdopen(1, "wb", _BUFFER)
    with tarfile.open(fileobj=out, mode="w|", bufsize=_BUFFER, format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo(INDEX)
        member.size = len(index)
        tar.addfile(member, io.BytesIO(index))
        for path, _info in found:
            _add(tar, path)
    out.flush()


def digest(roots: Sequence[str]) -> None:
    """Write to stdout, in hex, the sha256 over the canonical listing of all that lies below `roots`.

    A line a path, sorted: path, kind, mode, and a symlink's target or the sha256 of a file's content.
    Owners and times are not part of it. Sandboxes with equal digests hold equal files.
    """
    import hashlib

    lines = []
    for root in sorted({os.path.realpath(root) for root in roots}):
        for path, info, _names in _walk(root, os.stat(root).st_dev):
            kind, what = "d", b""
            if stat.S_ISLNK(info.st_mode):
                kind, what = "l", os.fsencode(os.readlink(path))
            elif stat.S_ISREG(info.st_mode):
                kind, what = "f", _hash(hashlib.sha256(), path)
            lines.append(wire.pack([os.fsencode(path), kind, stat.S_IMODE(info.st_mode), what]))
    whole = hashlib.sha256()
    for line in sorted(set(lines)):
        whole.update(line)
    os.write(1, whole.hexdigest().encode())


def _hash(state: Any, path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            while data := file.read(_BUFFER):
                state.update(data)
    except PermissionError:
        return b"unreadable"  # another user's, which the sandbox can't have changed
    digest: bytes = state.digest()
    return digest


def _walk(root: str, device: int) -> Iterator[tuple[str, os.stat_result, list[bytes] | None]]:
    """Every path below and with `root` on its own file system; directories with their names, before their contents."""
    todo = [root]
    while todo:
        folder = todo.pop()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            info = os.stat(folder)
        except OSError:
            continue  # removed meanwhile, or not ours to read
        inside = []
        for entry in entries:
            try:
                about = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if about.st_dev != device:
                continue
            inside.append((entry, about))
        yield folder, info, [os.fsencode(entry.name) for entry in entries]
        for entry, about in inside:
            if stat.S_ISDIR(about.st_mode):
                todo.append(entry.path)
            elif stat.S_ISREG(about.st_mode) or stat.S_ISLNK(about.st_mode):
                yield entry.path, about, None


def _add(tar: TarFile, path: str) -> None:
    tar.inodes = {}  # type: ignore[attr-defined] # hard links travel as files of their own
    try:
        member = tar.gettarinfo(path, path)
        if not member.isreg():
            tar.addfile(member)
            return
        with open(path, "rb") as file:
            tar.addfile(member, file)
    except FileNotFoundError:
        return  # removed while we were looking; its directory's names tell


def apply() -> None:
    """Take a tar as `changes` makes it from stdin, and make its roots look like it."""
    import tarfile

    names: dict[str, Any] = {}
    folders = []
    with tarfile.open(fileobj=os.fdopen(0, "rb", _BUFFER), mode="r|", bufsize=_BUFFER) as tar:
        for member in tar:
            if member.name == INDEX:
                data = tar.extractfile(member)
                assert data is not None
                names = wire.unpack(data.read())["names"]
                continue
            path = "/" + member.name
            if member.isdir():
                if os.path.islink(path) or os.path.isfile(path):
                    os.unlink(path)
                os.makedirs(path, exist_ok=True)
                folders.append((path, member))
            else:
                _replace(tar, member, path)
    for folder, kept in names.items():
        for name in set(os.listdir(os.fsencode(folder))) - set(kept):
            _remove(os.path.join(os.fsencode(folder), name))
    for path, member in reversed(folders):
        _attributes(path, member)


def _replace(tar: TarFile, member: Any, path: str) -> None:
    if os.path.islink(path) or os.path.isfile(path):
        os.unlink(path)
    elif os.path.isdir(path):
        _remove(os.fsencode(path))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if member.issym():
        os.symlink(member.linkname, path)
        os.utime(path, (member.mtime, member.mtime), follow_symlinks=False)
        return
    source = tar.extractfile(member)
    assert source is not None
    with open(path, "wb") as file:
        while data := source.read(_BUFFER):
            file.write(data)
    _attributes(path, member)


def _attributes(path: str, member: Any) -> None:
    """Owner, mode and time, as far as they are ours to set: the image's own folders stay as they are."""
    info = os.stat(path)
    if os.getuid() == 0 and (info.st_uid, info.st_gid) != (member.uid, member.gid):
        os.chown(path, member.uid, member.gid)
    if os.getuid() in (0, info.st_uid):
        os.chmod(path, stat.S_IMODE(member.mode))
        os.utime(path, (member.mtime, member.mtime))


def _remove(path: bytes) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        for name in os.listdir(path):
            _remove(os.path.join(path, name))
        if not os.path.ismount(path):
            os.rmdir(path)
    elif not os.path.ismount(path):
        os.unlink(path)
