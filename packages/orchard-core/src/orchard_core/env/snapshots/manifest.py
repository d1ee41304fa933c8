"""What a snapshot consists of, and the proof that a sandbox looks like it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from orchard_core.env.errors import SandboxError

Kind = Literal["file", "directory", "symlink"]


class SnapshotMismatchError(SandboxError):
    """A sandbox does not look like the snapshot that was restored into it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One path. `path` (without its first "/") and `target` may hold lone surrogates for bytes that are not UTF-8.

    A file's content is named by its sha256 in `content`. `mtime` in Unix seconds.
    """

    path: str
    kind: Kind
    mode: int
    uid: int
    gid: int
    mtime: float
    size: int = 0
    content: str = ""
    target: str = ""

    def look(self) -> tuple[object, ...]:
        """What must be equal in a restored sandbox; owners and times may differ there."""
        return (self.kind, self.mode, self.size, self.content, self.target)


@dataclass(frozen=True, slots=True)
class Manifest:
    """All of a snapshot but the contents of its files.

    `names` holds for each changed directory all names in it, by which removals are known;
    `spec` the image, working directory and environment that the sandbox began with.
    """

    spec: Mapping[str, Any]
    entries: tuple[Entry, ...]
    names: Mapping[str, list[str]]

    def encode(self) -> bytes:
        """The canonical bytes; their sha256 is the snapshot's id."""
        fields = Entry.__dataclass_fields__
        entries = [{name: getattr(entry, name) for name in fields} for entry in self.entries]
        value = {"version": 1, "spec": dict(self.spec), "entries": entries, "names": dict(self.names)}
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        value = json.loads(data)
        return cls(value["spec"], tuple(Entry(**entry) for entry in value["entries"]), value["names"])

    @property
    def id(self) -> str:
        return hashlib.sha256(self.encode()).hexdigest()

    def check(self, restored: Manifest) -> None:
        """Raise SnapshotMismatchError unless everything in this one looks the same in `restored`."""
        found = {entry.path: entry.look() for entry in restored.entries}
        for entry in self.entries:
            if found.get(entry.path) != entry.look():
                what = "is missing" if entry.path not in found else "differs"
                raise SnapshotMismatchError(f"/{entry.path} {what} in the restored sandbox")
        for folder, names in self.names.items():
            extra = set(restored.names.get(folder, names)) - set(names)
            if extra:
                raise SnapshotMismatchError(f"{folder}/{min(extra)} should not be in the restored sandbox")
