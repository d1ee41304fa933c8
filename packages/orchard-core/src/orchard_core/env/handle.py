"""The sandbox handle: the one way to act in a sandbox, whichever provider made it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from orchard_core.env.spec import SandboxSpec

DEFAULT_MAX_OUTPUT = 1 << 20

Verdict = Literal["open", "refused", "timeout", "unreachable"]
"""What became of a connection from inside a sandbox to the outside."""

OutputCallback = Callable[[Literal["stdout", "stderr"], bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command ended.

    `exit_code` is the status (negative: killed by that signal); `None` when it timed out or was cancelled.
    `stdout`/`stderr` hold the head and the tail when output went over the bound; the number of
    bytes cut from the middle is in `stdout_dropped`/`stderr_dropped`.
    """

    exec_id: str
    exit_code: int | None
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    cancelled: bool = False
    stdout_dropped: int = 0
    stderr_dropped: int = 0
    duration_s: float = 0.0

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def text(self) -> str:
        """stdout as text; undecodable bytes are replaced."""
        return self.stdout.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class JobStatus:
    """How a command stands. Times in Unix seconds; `*_bytes` written so far."""

    id: str
    argv: list[str]
    state: Literal["running", "exited", "timed_out", "cancelled"]
    exit_code: int | None
    started_at: float
    ended_at: float | None
    stdout_bytes: int
    stderr_bytes: int


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One directory entry. `size` in bytes, `mode` the permission bits, `mtime` in Unix seconds."""

    path: str
    kind: Literal["file", "directory", "symlink", "other"]
    size: int
    mode: int
    mtime: float
    link_target: str | None = None


@dataclass(frozen=True, slots=True)
class LeaseLeft:
    """Seconds until the sandbox ends; `idle_left_s` is None where idleness does not end it."""

    ttl_left_s: float
    idle_left_s: float | None


@dataclass(frozen=True, slots=True)
class SandboxStatistics:
    """`rss_bytes` and `uptime_s` of sandboxd, `processes` in the sandbox, `running` commands, open `streams`."""

    rss_bytes: int
    uptime_s: float
    processes: int
    running: int
    streams: int


@dataclass(frozen=True, slots=True)
class Window:
    """A terminal's size in characters."""

    rows: int = 24
    columns: int = 80


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """What a provider knows of a sandbox; times in Unix seconds."""

    id: str
    status: Literal["pending", "ready", "failed", "gone"]
    message: str
    image: str
    labels: Mapping[str, str]
    created_at: float
    expires_at: float


class ByteStream(Protocol):
    """A connection to a port inside a sandbox."""

    async def send(self, data: bytes) -> None:
        """Send bytes, waiting while the other side lags."""
        ...

    def end(self) -> None:
        """Say that no more bytes will be sent."""
        ...

    async def receive(self) -> bytes:
        """The next bytes; empty at the end. Raises SandboxPortError when nothing answers on the port."""
        ...

    def close(self) -> None:
        """Cut the connection."""
        ...


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
        user: str | None = None,
        stdin: bytes | None = None,
        on_output: OutputCallback | None = None,
        max_output: int = DEFAULT_MAX_OUTPUT,
    ) -> ExecResult:
        """Run a command (a string goes to `/bin/sh -c`); never twice for one `exec_id`.

        A second call with the same id waits for, or returns, the first one's result. On time-out
        the whole process tree is killed and the output so far is returned.
        """
        ...

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
        ...

    async def attach(self, exec_id: str, *, on_output: OutputCallback | None = None) -> ExecResult:
        """Wait for a command's result; `on_output` first gets the output so far. Raises UnknownExecError."""
        ...

    async def job(self, exec_id: str) -> JobStatus:
        """How a command stands. Raises UnknownExecError."""
        ...

    async def jobs(self) -> list[JobStatus]:
        """Every command that runs or whose result is kept, oldest first."""
        ...

    async def signal(self, exec_id: str, number: int) -> JobStatus:
        """Send a signal to all processes of a command."""
        ...

    async def cancel(self, exec_id: str) -> JobStatus:
        """Kill all processes of a command; its result keeps the output so far and says `cancelled`."""
        ...

    async def send_input(self, exec_id: str, data: bytes, *, last: bool = False) -> None:
        """Write to a job's input; with `last` the job sees the end of it afterwards."""
        ...

    async def apply_patch(self, patch: bytes, *, cwd: str | None = None) -> ExecResult:
        """Apply a unified diff below `cwd`, by `git` or else `patch`; the exit code says whether it applied.

        Raises UsageError when the sandbox has neither.
        """
        ...

    async def resize(self, exec_id: str, window: Window) -> None:
        """Tell a job's terminal its new size."""
        ...

    async def read_file(self, path: str) -> bytes: ...

    def read_stream(self, path: str, *, offset: int = 0) -> AsyncIterator[bytes]:
        """A regular file piece by piece, from byte `offset` on."""
        ...

    async def write_stream(self, path: str, source: AsyncIterator[bytes], *, mode: int = 0o644) -> None:
        """Like `write_file`, of bytes that come piece by piece; nothing changes if `source` fails."""
        ...

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write atomically, creating parent directories."""
        ...

    async def list_files(self, path: str) -> list[FileInfo]: ...

    async def upload_archive(self, source: AsyncIterator[bytes], target: str) -> None:
        """Unpack a tar (uncompressed) into the sandbox's folder `target`."""
        ...

    def download_archive(self, source: str) -> AsyncIterator[bytes]:
        """The sandbox's folder `source` as a tar. Its names are the sandbox's: do not trust them."""
        ...

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

    async def connect(self, port: int) -> ByteStream:
        """Connect to 127.0.0.1:`port` inside the sandbox."""
        ...

    async def probe(self, host: str, port: int, *, timeout_s: float = 2.0) -> Verdict:
        """Whether a TCP connection to an IP address can be made from inside."""
        ...

    async def lease(self) -> LeaseLeft:
        """How long the sandbox still lives; asking counts as use."""
        ...

    async def renew(self, *, ttl_s: float | None = None, idle_s: float | None = None) -> LeaseLeft:
        """Count the time limit anew from now, or set another limit on idleness (seconds)."""
        ...

    async def statistics(self) -> SandboxStatistics: ...

    def changes(self) -> AsyncIterator[bytes]:
        """A tar of what was made, changed and removed since the sandbox began."""
        ...

    async def digest(self, roots: Sequence[str] | None = None) -> str:
        """The sha256 (hex) over all files below `roots`; equal where they are. By default of all that is the sandbox's."""
        ...

    async def apply_changes(self, source: AsyncIterator[bytes]) -> None:
        """Make the sandbox's folders look as a tar of `changes` says."""
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
