"""The bwrap process of one sandbox: started without blocking on it, and waited for through a pidfd."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import subprocess

from orchard_core.env.errors import SandboxStartError
from orchard_core.env.providers.bwrap_arguments import INNER_ID, OUTER_ID

_log = logging.getLogger(__name__)


class BwrapProcess:
    """bwrap and, below it, the sandbox."""

    def __init__(self, process: subprocess.Popen[bytes], stderr: int, info: int, unblock: int | None) -> None:
        self._process = process
        self._stderr = stderr
        self._info = info
        self._unblock = unblock
        self._init: int | None = None  # a pidfd of the sandbox's first process
        self._exited = asyncio.Event()
        self._pidfd = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_exit)

    @classmethod
    def spawn(cls, argv: list[str], connection: int, client: int, as_root: bool) -> BwrapProcess:
        """Start `argv` (bwrap's arguments follow its name) with `connection` as stdin and `client` inherited.

        As root bwrap waits until `map_users` has written its user map, which takes the parent's privilege.
        """
        # A file in memory takes messages of any length without anybody reading; sandboxd guards it inside.
        stderr = os.memfd_create("bwrap-stderr")
        info_read, info_write = os.pipe()
        # With the reading end too, or else bwrap, writing to it when we have died, would die of the
        # broken pipe in the midst of a start, and leave its child waiting.
        given = [info_write, info_read]
        options = ["--info-fd", str(info_write)]
        unblock = None
        if as_root:
            block, unblock = os.pipe()
            given.append(block)
            options += ["--userns-block-fd", str(block)]
        try:
            # Its own session keeps the terminal's Ctrl-C from it; we end it in order ourselves.
            process = subprocess.Popen(
                [argv[0], *options, *argv[1:]],
                stdin=connection,
                stdout=stderr,
                stderr=stderr,
                pass_fds=[*given, client],
                env={},
                start_new_session=True,
            )
        except OSError as error:
            for fd in (stderr, info_read, *([] if unblock is None else [unblock])):
                os.close(fd)
            raise SandboxStartError(f"{argv[0]} could not be started: {error.strerror}") from error
        finally:
            for fd in given:
                if fd != info_read:
                    os.close(fd)
        return cls(process, stderr, info_read, unblock)

    @property
    def ended(self) -> bool:
        return self._exited.is_set()

    async def map_users(self) -> None:
        """Learn the sandbox's first process and, as root, map its users: 0 to root, the workload to nobody."""
        data = await _read_all(self._info)
        if not data.strip():
            return  # bwrap failed before; its message tells why
        pid = int(json.loads(data)["child-pid"])
        with contextlib.suppress(ProcessLookupError):
            self._init = os.pidfd_open(pid)
        if self._unblock is not None:
            _write_maps(pid)
            with contextlib.suppress(BrokenPipeError):
                os.write(self._unblock, b"1")

    def stderr(self) -> str:
        """What bwrap and sandboxd complained about (at most 4,000 bytes)."""
        return os.pread(self._stderr, 4000, 0).decode("utf-8", "replace")

    def kill(self) -> None:
        """SIGKILL the sandbox's first process, and with it all others; at once, without waiting.

        bwrap itself is never killed: its child might still be waiting for it, and would do so for ever.
        """
        if self._init is not None and not self.ended:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init, signal.SIGKILL)

    async def end(self, patience_s: float) -> None:
        """Wait until the sandbox, of which the connection has been closed, is gone; then kill it."""
        if self._unblock is not None:
            os.close(self._unblock)  # a start that was given up goes on, finds its client gone, and ends
            self._unblock = None
        try:
            async with asyncio.timeout(patience_s):
                await self._exited.wait()
        except TimeoutError:
            _log.warning("a sandbox did not end by itself within %.0f s and is killed", patience_s)
            self.kill()
            await self._exited.wait()

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self._process.wait()
        os.close(self._pidfd)
        self._exited.set()

    def __del__(self) -> None:
        for fd in (self._stderr, self._info, self._unblock, self._init):
            if fd is not None:
                os.close(fd)


def _write_maps(pid: int) -> None:
    for kind in ("uid", "gid"):
        try:
            with open(f"/proc/{pid}/{kind}_map", "w") as file:
                file.write(f"0 0 1\n{INNER_ID} {OUTER_ID} 1\n")
        except OSError as error:
            raise SandboxStartError(f"the sandbox's users could not be mapped: {error}") from error


async def _read_all(fd: int) -> bytes:
    """Read a pipe to its end, or to the end of one JSON object, without blocking the loop."""
    loop = asyncio.get_running_loop()
    os.set_blocking(fd, False)
    data = b""
    while not data.rstrip().endswith(b"}"):
        ready = loop.create_future()
        loop.add_reader(fd, ready.set_result, None)
        try:
            await ready
        finally:
            loop.remove_reader(fd)
        piece = os.read(fd, 4096)
        if not piece:
            break
        data += piece
    return data
