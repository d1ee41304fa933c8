"""Working trees as tar streams: a package's files, compiled, with or without a repository."""

from __future__ import annotations

import importlib.util
import io
import marshal
import struct
import sys
import tarfile
from collections.abc import Mapping
from functools import lru_cache

from orchard_swe.gitrepo import EPOCH, Repository


def pack_tree(
    files: Mapping[str, bytes],
    *,
    uncompiled: frozenset[str] = frozenset(),
    repository: Repository | None = None,
) -> bytes:
    """An uncompressed tar of `files`; Python files get their bytecode beside them.

    The files' times are fixed, so the bytecode is valid until a file is written again; those in
    `uncompiled` have none.
    """
    parts: list[bytes] = []
    for path, body in files.items():
        parts.append(_entry(path, body))
        if path.endswith(".py") and path not in uncompiled:
            compiled = _bytecode(path, body)
            if compiled is not None:
                parts.append(_entry(_cached_name(path), compiled))
    if repository is not None:
        parts.extend(_entry(path, body) for path, body in repository.files.items())
    return b"".join(parts) + b"\0" * 1024


def _cached_name(path: str) -> str:
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}__pycache__/{name.removesuffix('.py')}.{sys.implementation.cache_tag}.pyc"


@lru_cache(maxsize=2048)
def _bytecode(path: str, body: bytes) -> bytes | None:
    """A timestamp-checked .pyc file, or None when the source does not compile."""
    try:
        code = compile(body, f"/workspace/{path}", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    return importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, EPOCH, len(body)) + marshal.dumps(code)


@lru_cache(maxsize=4096)
def _entry(path: str, body: bytes) -> bytes:
    info = tarfile.TarInfo(path)
    info.size, info.mtime, info.mode = len(body), EPOCH, 0o644
    stream = io.BytesIO()
    stream.write(info.tobuf(tarfile.GNU_FORMAT))
    stream.write(body)
    stream.write(b"\0" * (-len(body) % 512))
    return stream.getvalue()
