"""A thin synchronous facade: every call goes to the async core, which runs in one portal thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from orchard_core.env.handle import (
    DEFAULT_MAX_OUTPUT,
    ExecResult,
    FileInfo,
    JobStatus,
    LeaseLeft,
    Provider,
    Sandbox,
)
from orchard_core.env.spec import SandboxSpec

_T = TypeVar("_T")


class Portal:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="orchard-portal", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` in the loop and wait for it; an interrupt of the wait cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SyncSandbox:
    """A `Sandbox` without `await`; see there for what each call does."""

    def __init__(self, sandbox: Sandbox, portal: Portal) -> None:
        self._sandbox = sandbox
        self._portal = portal

    @property
    def id(self) -> str:
        return self._sandbox.id

    @property
    def spec(self) -> SandboxSpec:
        return self._sandbox.spec

    def exec(
        self,
        command: str | Sequence[str],
        *,
        exec_id: str | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bytes | None = None,
        on_output: Callable[[Literal["stdout", "stderr"], bytes], None] | None = None,
        max_output: int = DEFAULT_MAX_OUTPUT,
    ) -> ExecResult:
        """`on_output` is called in the portal's thread."""

        async def forward(stream: Literal["stdout", "stderr"], data: bytes) -> None:
            assert on_output is not None
            on_output(stream, data)

        return self._portal.run(
            self._sandbox.exec(
                command,
                exec_id=exec_id,
                timeout=timeout,
                env=env,
                cwd=cwd,
                stdin=stdin,
                on_output=forward if on_output is not None else None,
                max_output=max_output,
            )
        )

    def start(
        self,
        command: str | Sequence[str],
        *,
        exec_id: str | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: bool = False,
    ) -> JobStatus:
        return self._portal.run(
            self._sandbox.start(command, exec_id=exec_id, timeout=timeout, env=env, cwd=cwd, stdin=stdin)
        )

    def attach(self, exec_id: str) -> ExecResult:
        return self._portal.run(self._sandbox.attach(exec_id))

    def job(self, exec_id: str) -> JobStatus:
        return self._portal.run(self._sandbox.job(exec_id))

    def jobs(self) -> list[JobStatus]:
        return self._portal.run(self._sandbox.jobs())

    def signal(self, exec_id: str, number: int) -> JobStatus:
        return self._portal.run(self._sandbox.signal(exec_id, number))

    def cancel(self, exec_id: str) -> JobStatus:
        return self._portal.run(self._sandbox.cancel(exec_id))

    def send_input(self, exec_id: str, data: bytes, *, last: bool = False) -> None:
        self._portal.run(self._sandbox.send_input(exec_id, data, last=last))

    def apply_patch(self, patch: bytes, *, cwd: str | None = None) -> ExecResult:
        return self._portal.run(self._sandbox.apply_patch(patch, cwd=cwd))

    def lease(self) -> LeaseLeft:
        return self._portal.run(self._sandbox.lease())

    def renew(self, *, ttl_s: float | None = None, idle_s: float | None = None) -> LeaseLeft:
        return self._portal.run(self._sandbox.renew(ttl_s=ttl_s, idle_s=idle_s))

    def read_file(self, path: str) -> bytes:
        return self._portal.run(self._sandbox.read_file(path))

    def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        self._portal.run(self._sandbox.write_file(path, data, mode=mode))

    def list_files(self, path: str) -> list[FileInfo]:
        return self._portal.run(self._sandbox.list_files(path))

    def upload_tree(self, source: Path, target: str) -> None:
        self._portal.run(self._sandbox.upload_tree(source, target))

    def download_tree(self, source: str, target: Path) -> None:
        self._portal.run(self._sandbox.download_tree(source, target))

    def tunnel(self, port: int, target: tuple[str, int]) -> None:
        self._portal.run(self._sandbox.tunnel(port, target))

    def close(self) -> None:
        self._portal.run(self._sandbox.close())

    def __enter__(self) -> SyncSandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class SyncProvider:
    """A `Provider` without `await`. Close it, or use it as a context manager."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._portal = Portal()

    @property
    def name(self) -> str:
        return self._provider.name

    def create(self, spec: SandboxSpec) -> SyncSandbox:
        return SyncSandbox(self._portal.run(self._provider.create(spec)), self._portal)

    def close(self) -> None:
        try:
            self._portal.run(self._provider.close())
        finally:
            self._portal.close()

    def __enter__(self) -> SyncProvider:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
