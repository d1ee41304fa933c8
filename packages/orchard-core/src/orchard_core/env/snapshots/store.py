"""Where snapshots are kept: a folder or an object store, by content, so that what is equal is kept once."""

from __future__ import annotations

import asyncio
import json
import tempfile
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import IO, TYPE_CHECKING, Any

from orchard_core.env.errors import SandboxError
from orchard_core.env.handle import Provider, Sandbox
from orchard_core.env.snapshots.archive import read_archive, write_archive
from orchard_core.env.snapshots.manifest import Manifest
from orchard_core.env.spec import SandboxSpec
from orchard_core.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_PIECE = 1 << 20
_SPOOL_IN_MEMORY = 16 << 20


class UnknownSnapshotError(UsageError):
    """The store holds no snapshot with this id."""


class SnapshotStore:
    """Snapshots under `url`: a folder, or any store that fsspec knows ("s3://bucket/path", "memory://").

    Blobs are named by the sha256 of their content and never change, so any number of processes may share
    a store. A snapshot's id is the sha256 of its manifest: equal files, equal id.
    """

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise MissingExtraError("fsspec", "snapshots") from error
        self._files: AbstractFileSystem
        self._files, self._root = url_to_fs(url)

    async def save(self, sandbox: Sandbox) -> str:
        """Freeze the sandbox's changes; returns the snapshot's id."""
        with await _spooled(sandbox) as spool:
            return await asyncio.to_thread(self._save, spool, sandbox.spec)

    async def restore(self, snapshot_id: str, provider: Provider, *, verify: bool = True) -> Sandbox:
        """A new sandbox that looks like the snapshot.

        With `verify` its files are read back and compared; raises SnapshotMismatchError if one differs.
        """
        manifest = await asyncio.to_thread(self.manifest, snapshot_id)
        sandbox = await provider.create(_spec(manifest.spec))
        try:
            with tempfile.SpooledTemporaryFile(max_size=_SPOOL_IN_MEMORY) as spool:
                await asyncio.to_thread(write_archive, manifest, spool, self._get)
                spool.seek(0)
                await sandbox.apply_changes(_pieces(spool))
            if verify:
                with await _spooled(sandbox) as again:
                    restored = await asyncio.to_thread(read_archive, again, manifest.spec, _forget)
                manifest.check(restored)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def manifest(self, snapshot_id: str) -> Manifest:
        """A snapshot's manifest. Raises UnknownSnapshotError, and SandboxError if it is damaged."""
        try:
            data = self._files.cat_file(self._path("snapshots", snapshot_id))
        except FileNotFoundError as error:
            raise UnknownSnapshotError(f"there is no snapshot {snapshot_id!r} in {self._root}") from error
        try:
            manifest = Manifest.decode(data)
        except (ValueError, KeyError, TypeError) as error:
            raise SandboxError(f"the snapshot {snapshot_id} in {self._root} is damaged") from error
        if manifest.id != snapshot_id:
            raise SandboxError(f"the snapshot {snapshot_id} in {self._root} is damaged")
        return manifest

    def ids(self) -> list[str]:
        """All snapshots, sorted."""
        folder = f"{self._root}/snapshots"
        if not self._files.exists(folder):
            return []
        return sorted(name.rpartition("/")[2] for name in self._files.find(folder) if ".part-" not in name)

    def _save(self, spool: IO[bytes], spec: SandboxSpec) -> str:
        manifest = read_archive(spool, _spec_fields(spec), self._put)
        self._write(self._path("snapshots", manifest.id), manifest.encode())
        return manifest.id

    def _put(self, digest: str, content: bytes) -> None:
        path = self._path("blobs", digest)
        if not self._files.exists(path):
            self._write(path, content)

    def _get(self, digest: str) -> bytes:
        try:
            content: bytes = self._files.cat_file(self._path("blobs", digest))
        except FileNotFoundError as error:
            raise SandboxError(f"the snapshot store {self._root} lacks the blob {digest}") from error
        return content

    def _write(self, path: str, content: bytes) -> None:
        """Whole or not at all: written beside and moved."""
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
        part = f"{path}.part-{uuid.uuid4().hex[:8]}"
        self._files.pipe_file(part, content)
        self._files.mv(part, path)

    def _path(self, kind: str, name: str) -> str:
        if not name.isalnum():
            raise UnknownSnapshotError(f"{name!r} is no snapshot's id")
        return f"{self._root}/{kind}/{name[:2]}/{name}"


async def _spooled(sandbox: Sandbox) -> IO[bytes]:
    spool: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_SPOOL_IN_MEMORY)  # noqa: SIM115 # the caller closes it
    async for data in sandbox.changes():
        spool.write(data)
    spool.seek(0)
    return spool


async def _pieces(spool: IO[bytes]) -> AsyncIterator[bytes]:
    while data := spool.read(_PIECE):
        yield data


def _forget(_digest: str, _content: bytes) -> None:
    """The contents are only wanted for their hashes."""


def _spec_fields(spec: SandboxSpec) -> dict[str, Any]:
    return {"image": spec.image, "workdir": spec.workdir, "env": dict(spec.env), "labels": dict(spec.labels)}


def _spec(fields: Mapping[str, Any]) -> SandboxSpec:
    try:
        return SandboxSpec(**json.loads(json.dumps(dict(fields))))
    except TypeError as error:
        raise SandboxError("the snapshot was made by another version of Orchard") from error
