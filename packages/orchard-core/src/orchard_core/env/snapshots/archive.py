"""Between a sandbox's tar of changes and a manifest with contents."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Mapping
from typing import IO, Any

from orchard_core.env.errors import SandboxError
from orchard_core.env.snapshots.manifest import Entry, Kind, Manifest
from orchard_core.sandboxd import wire
from orchard_core.sandboxd.snapshot import INDEX

Put = Callable[[str, bytes], None]
Get = Callable[[str], bytes]


def read_archive(spool: IO[bytes], spec: Mapping[str, Any], put: Put) -> Manifest:
    """The manifest of a tar of changes; every file's content goes to `put(sha256, content)`.

    Raises SandboxError for what is no such tar: the sandbox made it, so it is not trusted.
    """
    try:
        with tarfile.open(fileobj=spool, mode="r:") as tar:
            names: dict[str, list[str]] = {}
            entries = []
            for member in tar:
                if member.name == INDEX:
                    data = tar.extractfile(member)
                    names = _names(wire.unpack(data.read() if data else b""))
                else:
                    entries.append(_entry(tar, member, put))
    except (tarfile.TarError, wire.WireError, KeyError, TypeError, AttributeError) as error:
        raise SandboxError(f"the sandbox sent no readable changes: {error}") from error
    return Manifest(spec, tuple(sorted(entries, key=lambda entry: entry.path)), names)


def write_archive(manifest: Manifest, out: IO[bytes], get: Get) -> None:
    """The tar of changes that a manifest stands for."""
    with tarfile.open(fileobj=out, mode="w:", format=tarfile.PAX_FORMAT) as tar:
        names = {folder: [os.fsencode(name) for name in found] for folder, found in manifest.names.items()}
        index = wire.pack({"version": 1, "roots": [], "names": names})
        _add(tar, tarfile.TarInfo(INDEX), index)
        for entry in manifest.entries:
            member = tarfile.TarInfo(entry.path)
            member.mode, member.uid, member.gid, member.mtime = entry.mode, entry.uid, entry.gid, entry.mtime
            if entry.kind == "directory":
                member.type = tarfile.DIRTYPE
            elif entry.kind == "symlink":
                member.type, member.linkname = tarfile.SYMTYPE, entry.target
            _add(tar, member, get(entry.content) if entry.kind == "file" else b"")


def _add(tar: tarfile.TarFile, member: tarfile.TarInfo, content: bytes) -> None:
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _entry(tar: tarfile.TarFile, member: tarfile.TarInfo, put: Put) -> Entry:
    kind: Kind = "directory" if member.isdir() else "symlink" if member.issym() else "file"
    content = ""
    if kind == "file":
        data = tar.extractfile(member)
        if data is None:
            raise SandboxError(f"the sandbox sent {member.name!r}, which is no file, directory or symlink")
        whole = data.read()
        content = hashlib.sha256(whole).hexdigest()
        put(content, whole)
    return Entry(
        path=member.name,
        kind=kind,
        mode=member.mode & 0o7777,
        uid=member.uid,
        gid=member.gid,
        mtime=float(member.mtime),
        size=member.size if kind == "file" else 0,
        content=content,
        target=member.linkname if kind == "symlink" else "",
    )


def _names(index: Any) -> dict[str, list[str]]:
    return {folder: [os.fsdecode(name) for name in found] for folder, found in index["names"].items()}
