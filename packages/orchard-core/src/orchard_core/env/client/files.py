"""Files and directory trees of a sandbox."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from orchard_core.env import trees
from orchard_core.env.client.base import LinkUser, incoming, upload
from orchard_core.env.errors import ConnectionLostError, SandboxError
from orchard_core.env.handle import FileInfo
from orchard_core.sandboxd import wire

_KINDS: tuple[Literal["file", "directory", "symlink"], ...] = ("file", "directory", "symlink")
MAX_DOWNLOAD = 8 << 30


class Files(LinkUser):
    """Reading, writing, listing; archives and trees."""

    async def read_file(self, path: str) -> bytes:
        """The bytes of a regular file of at most 1 GiB."""
        return await self._gather({"op": "read", "path": path})

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write atomically, creating parent directories; a symlink's target is written, not replaced."""
        while True:
            try:
                await self.write_stream(path, _once(data), mode=mode)
                return
            except ConnectionLostError:
                if not self._link.resumable:
                    raise

    async def read_stream(self, path: str, *, offset: int = 0) -> AsyncIterator[bytes]:
        """A regular file piece by piece, from byte `offset` on; a slow reader holds the sender back."""
        stream = await self._open({"op": "read", "path": path, "offset": offset})
        async for data in incoming(stream, None):
            yield data

    async def write_stream(self, path: str, source: AsyncIterator[bytes], *, mode: int = 0o644) -> None:
        """Like `write_file`, of bytes that come piece by piece; nothing changes if `source` fails."""
        await upload(await self._open({"op": "write", "path": path, "mode": mode}), source)

    async def list_files(self, path: str) -> list[FileInfo]:
        """The entries of a directory by name, or the single entry of another kind of file."""
        entries = wire.unpack(await self._gather({"op": "list", "path": path}))
        try:
            return [_file_info(entry) for entry in entries]
        except (TypeError, KeyError, AttributeError) as error:
            raise SandboxError("sandboxd gave an unreadable listing") from error

    async def upload_archive(self, source: AsyncIterator[bytes], target: str) -> None:
        """Unpack a tar (uncompressed) that comes piece by piece into the sandbox's folder `target`."""
        await upload(await self._open({"op": "upload", "path": target}), source)

    async def download_archive(self, source: str) -> AsyncIterator[bytes]:
        """The sandbox's folder `source` as a tar, piece by piece. Its names are the sandbox's: do not trust them."""
        stream = await self._open({"op": "download", "path": source})
        async for data in incoming(stream, MAX_DOWNLOAD):
            yield data

    async def upload_tree(self, source: Path, target: str) -> None:
        """Copy a host directory into the sandbox, with modes and symlinks (kept as they are)."""
        with tempfile.TemporaryFile() as spool:
            await asyncio.to_thread(trees.pack_tree, source, spool)
            await self.upload_archive(_pieces(spool.read), target)

    async def download_tree(self, source: str, target: Path) -> None:
        """Copy a sandbox directory into `target`, which must be empty or absent.

        Modes (without set-id bits) and symlinks are kept. Raises SandboxFileError, leaving nothing
        behind, when a name or a link leads out of the tree.
        """
        trees.check_target(target)
        with tempfile.TemporaryFile() as spool:
            async for data in self.download_archive(source):
                spool.write(data)
            spool.seek(0)
            await asyncio.to_thread(trees.unpack_tree, spool, target)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _pieces(read: Callable[[int], bytes]) -> AsyncIterator[bytes]:
    while data := read(1 << 18):
        yield data


def _file_info(entry: Mapping[str, Any]) -> FileInfo:
    kind = entry["kind"]
    return FileInfo(
        path=str(entry["path"]),
        kind=kind if kind in _KINDS else "other",
        size=int(entry["size"]),
        mode=int(entry["mode"]),
        mtime=float(entry["mtime"]),
        link_target=entry["link_target"],
    )
