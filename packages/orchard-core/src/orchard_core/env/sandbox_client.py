"""The sandbox handle over a connection to sandboxd; the same for every provider."""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from orchard_core.env import trees
from orchard_core.env.connection import ClientStream
from orchard_core.env.errors import ConnectionLostError, SandboxError, SandboxFileError
from orchard_core.env.handle import DEFAULT_MAX_OUTPUT, ExecResult, FileInfo, OutputCallback
from orchard_core.env.link import Link
from orchard_core.errors import UsageError
from orchard_core.sandboxd import wire

_LIVE: dict[int, Literal["stdout", "stderr"]] = {wire.CH_LIVE_STDOUT: "stdout", wire.CH_LIVE_STDERR: "stderr"}
_KINDS: tuple[Literal["file", "directory", "symlink"], ...] = ("file", "directory", "symlink")
MAX_READ = 1 << 30
MAX_DOWNLOAD = 8 << 30


class SandboxClient:
    """Exec, files, trees and tunnels of one sandbox. Providers add how it begins and ends."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._received: list[str] = []  # lingering commands whose result has arrived

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        exec_id: str | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
        on_output: OutputCallback | None = None,
        max_output: int = DEFAULT_MAX_OUTPUT,
    ) -> ExecResult:
        """See `Sandbox.exec`. A program that can't be started ends with 127 (not found) or 126, as in a shell.

        Cancelling the call kills the command, unless `exec_id` was given: then it runs on, and a
        later call with that id gets its result. Results of given ids are kept; past 64 MiB the
        output of the oldest is dropped, and counted as dropped. When the connection is lost and the
        link can make a new one, the call goes on there: the command still runs only once.
        """
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        if not argv or any("\0" in word for word in argv):
            raise UsageError("a command needs at least one word, and no word may hold a NUL byte")
        name = exec_id or uuid.uuid4().hex
        request: dict[str, Any] = {
            "op": "exec",
            "id": name,
            "argv": argv,
            "env": dict(env or {}),
            "cwd": cwd,
            "timeout": None if timeout is None else float(timeout),
            "stdin": stdin is not None,
            "live": on_output is not None,
            "max_output": max_output,
            "keep": exec_id is not None,
            "linger": exec_id is None and self._link.resumable,
        }
        if sum(map(len, argv)) > wire.MAX_PAYLOAD // 8:
            raise UsageError("the command line is too long; write a file or use stdin")
        follow = _Follower(on_output)
        while True:
            request["done"], self._received = self._received, []
            request["seen"] = follow.seen
            try:
                result = await self._run(request, stdin, follow)
            except ConnectionLostError:
                if not self._link.resumable:
                    raise
                continue
            if request["linger"]:
                self._received.append(name)
            return result

    async def _run(self, request: dict[str, Any], stdin: bytes | None, follow: _Follower) -> ExecResult:
        stream = (await self._link.connection()).open(request)
        feeder = asyncio.create_task(_feed(stream, stdin)) if stdin is not None else None
        try:
            return await follow.collect(stream, request["id"])
        finally:
            stream.abandon()
            if feeder is not None:
                feeder.cancel()
                await asyncio.gather(feeder, return_exceptions=True)  # what matters of it, receive() has told

    async def read_file(self, path: str) -> bytes:
        """The bytes of a regular file of at most 1 GiB."""
        return await self._gather({"op": "read", "path": path})

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write atomically, creating parent directories; a symlink's target is written, not replaced."""
        stream = (await self._link.connection()).open({"op": "write", "path": path, "mode": mode})
        await _upload(stream, _once(data))

    async def list_files(self, path: str) -> list[FileInfo]:
        """The entries of a directory by name, or the single entry of another kind of file."""
        entries = wire.unpack(await self._gather({"op": "list", "path": path}))
        try:
            return [_file_info(entry) for entry in entries]
        except (TypeError, KeyError, AttributeError) as error:
            raise SandboxError("sandboxd gave an unreadable listing") from error

    async def upload_tree(self, source: Path, target: str) -> None:
        """Copy a host directory into the sandbox, with modes and symlinks (kept as they are)."""
        with tempfile.TemporaryFile() as spool:
            await asyncio.to_thread(trees.pack_tree, source, spool)
            stream = (await self._link.connection()).open({"op": "upload", "path": target})
            await _upload(stream, _pieces(spool.read))

    async def download_tree(self, source: str, target: Path) -> None:
        """Copy a sandbox directory into `target`, which must be empty or absent.

        Modes (without set-id bits) and symlinks are kept. Raises SandboxFileError, leaving nothing
        behind, when a name or a link leads out of the tree.
        """
        trees.check_target(target)
        with tempfile.TemporaryFile() as spool:
            stream = (await self._link.connection()).open({"op": "download", "path": source})
            async for data in _incoming(stream, MAX_DOWNLOAD):
                spool.write(data)
            spool.seek(0)
            await asyncio.to_thread(trees.unpack_tree, spool, target)

    async def tunnel(self, port: int, target: tuple[str, int]) -> None:
        """Listen on 127.0.0.1:`port` inside; carry each connection to `target` outside."""
        self._link.tunnels.add(port, target)
        try:
            await (await self._link.connection()).call({"op": "listen", "port": port})
        except BaseException:
            self._link.tunnels.remove(port)
            raise

    async def _gather(self, request: dict[str, Any]) -> bytes:
        stream = (await self._link.connection()).open(request)
        return b"".join([data async for data in _incoming(stream, MAX_READ)])


async def _feed(stream: ClientStream, data: bytes) -> None:
    await stream.send(data)
    stream.end()


class _Follower:
    """Follows an exec to its result, over more than one connection if need be."""

    def __init__(self, on_output: OutputCallback | None) -> None:
        self._on_output = on_output
        self.seen = [0, 0]  # bytes of live stdout and stderr that have been handed on

    async def collect(self, stream: ClientStream, name: str) -> ExecResult:
        kept: dict[int, list[bytes]] = {wire.CH_STDOUT: [], wire.CH_STDERR: []}
        while True:
            kind, payload = await stream.receive()
            if kind == wire.RESULT:
                return _exec_result(name, kept, payload)
            channel = payload[0] if kind == wire.DATA else -1
            if channel in kept:
                kept[channel].append(payload[1:])
            elif channel in _LIVE and self._on_output is not None:
                self.seen[channel - wire.CH_LIVE_STDOUT] += len(payload) - 1
                await self._on_output(_LIVE[channel], payload[1:])
            else:
                raise SandboxError("sandboxd gave an unexpected answer to exec")


def _exec_result(name: str, kept: Mapping[int, list[bytes]], payload: bytes) -> ExecResult:
    answer = wire.unpack(payload)
    return ExecResult(
        exec_id=name,
        exit_code=answer["exit_code"],
        stdout=b"".join(kept[wire.CH_STDOUT]),
        stderr=b"".join(kept[wire.CH_STDERR]),
        timed_out=answer["timed_out"],
        stdout_dropped=answer["stdout_dropped"],
        stderr_dropped=answer["stderr_dropped"],
        duration_s=answer["duration_s"],
    )


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _pieces(read: Callable[[int], bytes]) -> AsyncIterator[bytes]:
    while data := read(1 << 18):
        yield data


async def _upload(stream: ClientStream, source: AsyncIterator[bytes]) -> None:
    """Send all of `source`, then wait for the answer; an early refusal stops the sending."""
    try:
        async for data in source:
            await stream.send(data)
        stream.end()
        kind, _payload = await stream.receive()
        if kind != wire.RESULT:
            raise SandboxError("sandboxd gave an unexpected answer")
    finally:
        stream.abandon()


async def _incoming(stream: ClientStream, limit: int) -> AsyncIterator[bytes]:
    """The bytes that a stream brings until its result."""
    total = 0
    try:
        while True:
            kind, payload = await stream.receive()
            if kind == wire.RESULT:
                return
            total += len(payload) - 1
            if kind != wire.DATA or total > limit:
                raise SandboxFileError(
                    f"the sandbox sent more than {limit} bytes, the most that one transfer takes"
                )
            yield payload[1:]
    finally:
        stream.abandon()


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
