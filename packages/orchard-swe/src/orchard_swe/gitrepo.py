"""Builds a git repository of one commit in memory: no history, no process, no clock.

Formats: loose objects and the version 2 index of git's own documentation.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

EPOCH = 1_577_836_800
_IDENTITY = f"Orchard <orchard@localhost> {EPOCH} +0000"
_CONFIG = b"[core]\n\trepositoryformatversion = 0\n\tfilemode = false\n\tbare = false\n[user]\n\tname = agent\n\temail = agent@localhost\n[gc]\n\tauto = 0\n"
_EXCLUDE = b"__pycache__/\n*.pyc\n"


@dataclass(frozen=True, slots=True)
class Repository:
    """The `.git` files by path, and the commit's id."""

    files: dict[str, bytes]
    commit: str


@lru_cache(maxsize=4096)
def _blob(body: bytes) -> tuple[str, bytes]:
    return _object("blob", body)


def _object(kind: str, body: bytes) -> tuple[str, bytes]:
    data = f"{kind} {len(body)}\0".encode() + body
    return hashlib.sha1(data, usedforsecurity=False).hexdigest(), zlib.compress(data, 1)


def build_repository(tree: Mapping[str, bytes], message: str = "start") -> Repository:
    """A repository whose only commit holds `tree` (regular files, mode 644)."""
    objects: dict[str, bytes] = {}

    def add(kind: str, body: bytes) -> str:
        name, packed = _blob(body) if kind == "blob" else _object(kind, body)
        objects[name] = packed
        return name

    blobs = {path: add("blob", body) for path, body in tree.items()}
    root = _write_tree(blobs, add)
    text = f"tree {root}\nauthor {_IDENTITY}\ncommitter {_IDENTITY}\n\n{message}\n"
    commit = add("commit", text.encode())
    files = {f".git/objects/{name[:2]}/{name[2:]}": body for name, body in objects.items()}
    files |= {
        ".git/HEAD": b"ref: refs/heads/main\n",
        ".git/config": _CONFIG,
        ".git/info/exclude": _EXCLUDE,
        ".git/refs/heads/main": commit.encode() + b"\n",
        ".git/index": _index(blobs, tree),
    }
    return Repository(files, commit)


def _write_tree(blobs: Mapping[str, str], add: Callable[[str, bytes], str]) -> str:
    folders: dict[str, dict[str, str]] = {}
    entries: list[tuple[str, bytes]] = []
    for path, name in blobs.items():
        head, slash, rest = path.partition("/")
        if slash:
            folders.setdefault(head, {})[rest] = name
        else:
            entries.append((head, b"100644 " + head.encode() + b"\0" + bytes.fromhex(name)))
    for head, inner in folders.items():
        child = _write_tree(inner, add)
        entries.append((head + "/", b"40000 " + head.encode() + b"\0" + bytes.fromhex(child)))
    return add("tree", b"".join(body for _, body in sorted(entries, key=lambda e: e[0].encode())))


def _index(blobs: Mapping[str, str], tree: Mapping[str, bytes]) -> bytes:
    paths = sorted(blobs, key=str.encode)
    parts = [struct.pack(">4sII", b"DIRC", 2, len(paths))]
    for path in paths:
        name = path.encode()
        stat = struct.pack(">10I", EPOCH, 0, EPOCH, 0, 0, 0, 0o100644, 0, 0, len(tree[path]))
        entry = stat + bytes.fromhex(blobs[path]) + struct.pack(">H", min(len(name), 0xFFF)) + name
        parts.append(entry + b"\0" * (8 - len(entry) % 8))
    body = b"".join(parts)
    return body + hashlib.sha1(body, usedforsecurity=False).digest()
