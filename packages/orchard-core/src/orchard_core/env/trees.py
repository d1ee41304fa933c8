"""Directory trees on the host's side: packing for upload, and unpacking what a sandbox sent, which is not trusted."""

from __future__ import annotations

import os
import posixpath
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import IO

from orchard_core.env.errors import SandboxFileError
from orchard_core.errors import UsageError


def pack_tree(source: Path, spool: IO[bytes]) -> None:
    """Write `source` (files, directories, symlinks) as a tar and rewind `spool`."""
    if not source.is_dir():
        raise UsageError(f"{source} is not a directory")
    with tarfile.open(fileobj=spool, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.add(source, ".", filter=_uploaded)
    spool.seek(0)


def _uploaded(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def check_target(target: Path) -> None:
    """Raise UsageError unless `target` is absent or an empty directory."""
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise UsageError(f"{target} must not exist or be an empty directory, to receive a tree")


def unpack_tree(spool: IO[bytes], target: Path) -> None:
    """Unpack a tar into `target`, all or nothing.

    Raises SandboxFileError for absolute names, `..`, links that lead out of the tree, hard links and
    devices. Symlinks are made last, so that nothing is ever written through one.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        _unpack(spool, staging)
        if target.exists():
            target.rmdir()
        os.rename(staging, target)
    except (tarfile.TarError, FileExistsError, NotADirectoryError, UnicodeError) as error:
        raise SandboxFileError(f"the sandbox sent an unreadable tree: {error}") from error
    finally:
        if staging.exists():
            shutil.rmtree(staging)


def _unpack(spool: IO[bytes], staging: Path) -> None:
    links: list[tuple[Path, str]] = []
    folders: list[tuple[Path, int]] = []
    with tarfile.open(fileobj=spool, mode="r:") as tar:
        for member in tar:
            name = _safe_name(member.name)
            path = staging / name
            if member.isdir():
                path.mkdir(exist_ok=True, parents=True)
                folders.append((path, member.mode))
            elif member.issym():
                _check_link(name, member.linkname)
                links.append((path, member.linkname))
            elif member.isreg():
                _write_member(tar, member, path)
            else:
                raise SandboxFileError(
                    f"the sandbox sent {member.name!r}, which is no file, directory or symlink"
                )
    for path, destination in links:
        os.symlink(destination, path)
    # Deepest first and at the end, so that a read-only directory does not stop its own filling.
    for path, mode in sorted(folders, key=lambda entry: -len(entry[0].parts)):
        path.chmod(mode & 0o777 | 0o700)


def _write_member(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    data = tar.extractfile(member)
    assert data is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb") as file:
        shutil.copyfileobj(data, file)
    path.chmod(member.mode & 0o777)
    os.utime(path, (member.mtime, member.mtime))


def _safe_name(name: str) -> str:
    normal = posixpath.normpath(name)
    if name.startswith("/") or "\0" in name or ".." in name.split("/"):
        raise SandboxFileError(f"the sandbox sent {name!r}, which leads out of the tree; nothing was copied")
    return normal


def _check_link(name: str, destination: str) -> None:
    resolved = posixpath.normpath(posixpath.join(posixpath.dirname(name), destination))
    if destination.startswith("/") or resolved == ".." or resolved.startswith("../"):
        raise SandboxFileError(
            f"symlink {name!r} leads out of the tree (to {destination!r}); nothing was copied"
        )
