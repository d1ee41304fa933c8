"""Requests that make no sense are refused, one by one, and sandboxd goes on; so it does when it can make no process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from orchard_core.env import (
    Provider,
    SandboxError,
    SandboxFileError,
    SandboxSpec,
    open_provider,
)
from orchard_core.env.client import SandboxClient
from orchard_core.errors import UsageError
from waiting import becomes

EXEC: dict[str, Any] = {
    "op": "exec", "id": "x", "argv": ["true"], "env": {}, "cwd": None, "timeout": None, "max_output": 10,
    "keep": False, "stdin": False, "live": True,
}  # fmt: skip
SENSELESS: list[dict[str, Any]] = [
    {},
    {"op": "unknown"},
    {"op": "read", "path": "/etc/passwd", "offset": -1},
    {"op": "read", "path": "/etc/passwd", "offset": 1.5},
    {"op": "write", "path": "/tmp/f", "mode": "rwx"},
    {"op": "listen", "port": 70000},
    {"op": "listen", "port": -1},
    {"op": "connect", "port": 0},
    {"op": "connect", "port": "80"},
    {"op": "probe", "host": "localhost", "port": 80, "timeout_s": 1.0},
    {"op": "probe", "host": "127.0.0.1", "port": 1 << 40, "timeout_s": 1.0},
    {"op": "probe", "host": "127.0.0.1", "port": 80, "timeout_s": float("nan")},
    {"op": "renew", "ttl_s": float("inf")},
    {"op": "renew", "ttl_s": -1.0},
    {"op": "renew", "idle_s": "soon"},
    {"op": "changes", "roots": ["/"]},
    {"op": "signal", "id": ["x"], "number": 1},
    {**EXEC, "timeout": float("nan")},
    {**EXEC, "timeout": "long"},
    {**EXEC, "max_output": None},
    {**EXEC, "window": [1 << 20, -1]},
    {**EXEC, "id": ["x"]},
    {**EXEC, "env": None},
    {**EXEC, "cwd": 3},
    {**EXEC, "user": "1:staff"},
    {**EXEC, "done": 5},
]


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    made = open_provider("bubblewrap")
    yield made
    await made.close()


async def test_senseless_requests_are_refused(provider: Provider) -> None:
    sandbox = await provider.create(SandboxSpec())
    assert isinstance(sandbox, SandboxClient)
    connection = await sandbox._link.connection()
    for request in SENSELESS:
        with pytest.raises((UsageError, SandboxFileError)):
            await connection.call(request)
        assert not connection.lost.is_set(), request
    assert (await sandbox.exec("echo on")).text == "on\n"


async def test_waits_longer_than_the_kernel_takes_are_taken(provider: Provider) -> None:
    sandbox = await provider.create(SandboxSpec())
    assert (await sandbox.renew(ttl_s=1e8)).ttl_left_s > 1e7
    assert (await sandbox.exec("echo on", timeout=1e12)).text == "on\n"


async def test_where_no_process_can_be_made_commands_say_so_and_files_are_served(provider: Provider) -> None:
    sandbox = await provider.create(SandboxSpec(pids=60))
    # The inner shell's own place is free again in the end: enough for a supervisor, not for its command.
    fill = "(while :; do sleep 1000 & done) 2>/dev/null; echo full; exec sleep 1000"
    await sandbox.start(fill, exec_id="bomb")

    async def wrote() -> object:
        return (await sandbox.job("bomb")).stdout_bytes > 0

    await becomes(wrote, True)
    for _ in range(3):
        with pytest.raises(SandboxError, match="could not start a process"):
            await sandbox.exec("echo on", exec_id="refused", timeout=20)
        with pytest.raises(SandboxError, match="could not start a process"):
            await sandbox.start("echo on", exec_id="refused")
    assert await sandbox.list_files("/workspace") == []
    await sandbox.cancel("bomb")
    assert (await sandbox.attach("bomb")).cancelled
    # What never ran may be asked for again.
    assert (await sandbox.exec("echo on", exec_id="refused")).text == "on\n"


async def test_the_oldest_output_goes_first_and_is_counted(provider: Provider) -> None:
    sandbox = await provider.create(SandboxSpec())
    command = ["head", "-c", "1000000", "/dev/zero"]
    for number in range(70):
        await sandbox.exec(command, exec_id=str(number))
    oldest, newest = await sandbox.exec(command, exec_id="0"), await sandbox.exec(command, exec_id="69")
    assert (oldest.stdout, oldest.stdout_dropped) == (b"", 1_000_000)
    assert (len(newest.stdout), newest.stdout_dropped) == (1_000_000, 0)
    assert (await sandbox.job("0")).stdout_bytes == 1_000_000
    assert (await sandbox.statistics()).rss_bytes < 100 << 20
