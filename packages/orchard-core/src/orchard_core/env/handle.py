"""The sandbox handle: the one way to act in a sandbox, whichever provider made it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from orchard_core.env.spec import SandboxSpec

DEFAULT_MAX_OUTPUT = 1 << 20

OutputCallback = Callable[[Literal["stdout", "stderr"], bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended.

    `exit_code` is the status (negative: killed by that signal); `None` when it timed out.
    `stdout`/`stderr` hold the head and the tail when output went over the bound; the number of
    bytes cut from the middle is in `stdout_dropped`/`stderr_dropped`.
    """

    exec_id: str
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    stdout_dropped: int = 0
    stderr_dropped: int = 0
    duration_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and not self.timed_out

    @property
    def text(self) -> str:
        """stdout as text; undecodable bytes are replaced."""
        return self.stdout.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One directory entry. `size` in bytes, `mode` the permission bits, `mtime` in Unix seconds."""

    path: str
    kind: Literal["file", "directory", "symlink", "other"]
    size: int
    mode: int
    mtime: float
    link_target: str | None = None


class Sandbox(Protocol):
    """A running sandbox. An async context manager: leaving it destroys the sandbox."""

    @property
    def id(self) -> str: ...

    @property
    def spec(self) -> SandboxSpec: ...

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
        """Run a command (a string goes to `/bin/sh -c`); never twice for one `exec_id`.

        A second call with the same id waits for, or returns, the first one's result. On time-out
        the whole process tree is killed and the output so far is returned.
        """
        ...

    async def read_file(self, path: str) -> bytes: ...

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write atomically, creating parent directories."""
        ...

    async def list_files(self, path: str) -> list[FileInfo]: ...

    async def upload_tree(self, source: Path, target: str) -> None:
        """Copy a host directory into the sandbox, with modes and symlinks."""
        ...

    async def download_tree(self, source: str, target: Path) -> None:
        """Copy a sandbox directory to the host, with modes and symlinks; never outside `target`."""
        ...

    async def tunnel(self, port: int, target: tuple[str, int]) -> None:
        """Listen on 127.0.0.1:`port` in the sandbox; carry each connection to `target` outside.

        Lives as long as the sandbox. No route leaves the sandbox for it.
        """
        ...

    async def close(self) -> None: ...

    async def __aenter__(self) -> Sandbox: ...

    async def __aexit__(self, *exc: object) -> None: ...


class Provider(Protocol):
    """Makes and destroys sandboxes."""

    @property
    def name(self) -> str: ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Start a sandbox and return once it is ready.

        Raises ProviderUnavailableError or SandboxStartError.
        """
        ...

    async def close(self) -> None:
        """Destroy every sandbox this provider made."""
        ...
