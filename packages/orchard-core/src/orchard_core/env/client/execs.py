"""Commands of a sandbox: run and wait, jobs that run on, terminals."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal

from orchard_core.env.client.base import LinkUser, upload
from orchard_core.env.connection import ClientStream
from orchard_core.env.errors import ConnectionLostError, SandboxError
from orchard_core.env.handle import DEFAULT_MAX_OUTPUT, ExecResult, JobStatus, OutputCallback, Window
from orchard_core.env.link import Link
from orchard_core.errors import UsageError
from orchard_core.sandboxd import wire

MAX_OUTPUT = 64 << 20
_LIVE: dict[int, Literal["stdout", "stderr"]] = {wire.CH_LIVE_STDOUT: "stdout", wire.CH_LIVE_STDERR: "stderr"}
_PATCHERS = (
    ["git", "apply", "--whitespace=nowarn", "-"],
    ["patch", "--strip=1", "--forward", "--batch"],
)


class Execs(LinkUser):
    """Running commands. Each has an id and runs at most once for it."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._received: list[str] = []  # lingering commands whose result has arrived

    async def exec(
        self,
        command: str | Sequence[str],
        *,
        exec_id: str | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
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
        request = _request(command, exec_id, timeout, env, cwd, user, max_output)
        request["stdin"] = stdin is not None
        request["live"] = on_output is not None
        request["linger"] = exec_id is None and self._link.resumable
        return await self._follow(request, stdin, on_output)

    async def start(
        self,
        command: str | Sequence[str],
        *,
        exec_id: str | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        stdin: bool = False,
        terminal: Window | None = None,
        max_output: int = DEFAULT_MAX_OUTPUT,
    ) -> JobStatus:
        """Start a job, which runs on whoever listens; a second call with the same id starts nothing.

        With `stdin` its input stays open for `send_input`. On a `terminal` all output is stdout.
        """
        request = _request(command, exec_id, timeout, env, cwd, user, max_output)
        request.update(detach=True, stdin=stdin, live=False)
        if terminal is not None:
            request["window"] = [terminal.rows, terminal.columns]
        return _job_status(await self._call(request))

    async def attach(self, exec_id: str, *, on_output: OutputCallback | None = None) -> ExecResult:
        """Wait for a known command's result. `on_output` first gets the output so far, as far as it is kept.

        What is missing of it is counted in the result's `stdout_dropped` and `stderr_dropped`.
        Cancelling this does not end the command. Raises UnknownExecError.
        """
        request = {"op": "attach", "id": exec_id, "live": on_output is not None}
        return await self._follow(request, None, on_output)

    async def job(self, exec_id: str) -> JobStatus:
        """How a command stands. Raises UnknownExecError."""
        return _job_status(await self._call({"op": "status", "id": exec_id}))

    async def jobs(self) -> list[JobStatus]:
        """Every command that runs or whose result is kept, oldest first."""
        return [_job_status(entry) for entry in wire.unpack(await self._gather({"op": "execs"}))]

    async def signal(self, exec_id: str, number: int) -> JobStatus:
        """Send a signal to all processes of a command."""
        return _job_status(await self._call({"op": "signal", "id": exec_id, "number": int(number)}))

    async def cancel(self, exec_id: str) -> JobStatus:
        """Kill all processes of a command; its result keeps the output so far and says `cancelled`."""
        return _job_status(await self._call({"op": "cancel", "id": exec_id}))

    async def send_input(self, exec_id: str, data: bytes, *, last: bool = False) -> None:
        """Write to a job's input; with `last` the job sees the end of it afterwards."""
        await upload(await self._open({"op": "stdin", "id": exec_id, "last": last}), _once(data))

    async def apply_patch(self, patch: bytes, *, cwd: str | None = None) -> ExecResult:
        """Apply a unified diff (names as git writes them, `a/` and `b/`) below `cwd`, by `git` or else `patch`.

        `git` applies all of it or nothing. The result says by its exit code whether it applied. Raises
        UsageError when the sandbox has neither program.
        """
        for argv in _PATCHERS:
            result = await self.exec(argv, cwd=cwd, stdin=patch)
            if result.exit_code != 127:
                return result
        raise UsageError("the sandbox has neither git nor patch, so no patch can be applied in it")

    async def resize(self, exec_id: str, window: Window) -> None:
        """Tell a job's terminal its new size."""
        await self._call({"op": "resize", "id": exec_id, "rows": window.rows, "columns": window.columns})

    async def _follow(
        self, request: dict[str, Any], stdin: bytes | None, on_output: OutputCallback | None
    ) -> ExecResult:
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
            if request.get("linger"):
                self._received.append(request["id"])
            return result

    async def _run(self, request: dict[str, Any], stdin: bytes | None, follow: _Follower) -> ExecResult:
        stream = await self._open(request)
        feeder = asyncio.create_task(_feed(stream, stdin)) if stdin is not None else None
        try:
            return await follow.collect(stream, request["id"])
        finally:
            stream.abandon()
            if feeder is not None:
                feeder.cancel()
                await asyncio.gather(feeder, return_exceptions=True)  # what matters of it, receive() has told


def _request(
    command: str | Sequence[str],
    exec_id: str | None,
    timeout: float | None,
    env: Mapping[str, str] | None,
    cwd: str | None,
    user: str | None,
    max_output: int,
) -> dict[str, Any]:
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    if not argv or any("\0" in word for word in argv):
        raise UsageError("a command needs at least one word, and no word may hold a NUL byte")
    if not 0 <= max_output <= MAX_OUTPUT:
        raise UsageError(
            f"max_output is between 0 and {MAX_OUTPUT} bytes; what is longer, `on_output` takes as it comes"
        )
    if sum(map(len, argv)) > wire.MAX_PAYLOAD // 8:
        raise UsageError("the command line is too long; write a file or use stdin")
    return {
        "op": "exec",
        "id": exec_id or uuid.uuid4().hex,
        "argv": argv,
        "env": dict(env or {}),
        "cwd": cwd,
        "user": user,
        "timeout": None if timeout is None else float(timeout),
        "max_output": max_output,
        "keep": exec_id is not None,
    }


async def _feed(stream: ClientStream, data: bytes) -> None:
    await stream.send(data)
    stream.end()


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


class _Follower:
    """Follows an exec to its result, over more than one connection if need be."""

    def __init__(self, on_output: OutputCallback | None) -> None:
        self._on_output = on_output
        self.seen = [0, 0]  # bytes of live stdout and stderr that have been handed on

    async def collect(self, stream: ClientStream, name: str) -> ExecResult:
        kept: dict[int, list[bytes]] = {wire.CH_STDOUT: [], wire.CH_STDERR: []}
        skipped = b""
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
            elif channel == wire.CH_SKIPPED and self._on_output is not None:
                skipped += payload[1:]
                if len(skipped) >= wire.SKIPPED.size:
                    self._skip(*wire.SKIPPED.unpack(skipped))
                    skipped = b""
            else:
                raise SandboxError("sandboxd gave an unexpected answer to exec")

    def _skip(self, channel: int, count: int) -> None:
        """The sandbox keeps so many of the next bytes no longer."""
        if channel not in _LIVE:
            raise SandboxError("sandboxd gave an unexpected answer to exec")
        self.seen[channel - wire.CH_LIVE_STDOUT] += count


def _exec_result(name: str, kept: Mapping[int, list[bytes]], payload: bytes) -> ExecResult:
    answer = wire.unpack(payload)
    return ExecResult(
        exec_id=name,
        exit_code=answer["exit_code"],
        stdout=b"".join(kept[wire.CH_STDOUT]),
        stderr=b"".join(kept[wire.CH_STDERR]),
        timed_out=answer["timed_out"],
        cancelled=answer["cancelled"],
        stdout_dropped=answer["stdout_dropped"],
        stderr_dropped=answer["stderr_dropped"],
        duration_s=answer["duration_s"],
    )


def _job_status(answer: Any) -> JobStatus:
    try:
        return JobStatus(**answer)
    except TypeError as error:
        raise SandboxError("sandboxd gave an unreadable job status") from error
