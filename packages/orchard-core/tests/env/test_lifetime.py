"""Whatever ends the program that made a sandbox, nothing of the sandbox stays."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from orchard_core.env import SandboxGoneError, SandboxSpec
from orchard_core.env.providers.bubblewrap import BubblewrapProvider

PROGRAM = """
import asyncio, sys
from orchard_core.env import SandboxSpec, open_provider

async def main(marker, how):
    provider = open_provider("bubblewrap")
    async with await provider.create(SandboxSpec()) as one, await provider.create(SandboxSpec()):
        await one.exec(["sh", "-c", "setsid sleep 1000 & (setsid sh -c 'sleep 1000; : ' " + marker + " &) ; exit"], timeout=20)
        if not how.startswith("SIG"):
            print("ready", flush=True)
        if how == "exception":
            raise RuntimeError("as planned")
        if how == "exit":
            return

        async def on_output(*_):
            print("ready", flush=True)

        await one.exec(["sh", "-c", "echo up; sleep 1000; :", marker], on_output=on_output)

asyncio.run(main(*sys.argv[1:]))
"""


def _processes(marker: str) -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                line = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if marker in line:
                found.append(line)
    return found


def _children(parent: int) -> int:
    done = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False
    )
    return len(done.stdout.split())


def _gone(marker: str) -> bool:
    deadline = time.monotonic() + 20
    while _processes(marker):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("how", ["exit", "exception", "SIGINT", "SIGTERM", "SIGKILL"])
def test_no_process_is_left_when_the_program_ends_by(how: str, tmp_path: Path) -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, marker, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "ready\n", program.communicate()[1]
    if how.startswith("SIG"):
        assert len(_processes(marker)) >= 3  # the program, the background process, the command under way
        assert _children(program.pid) == 2
        program.send_signal(getattr(signal, how))
    program.communicate(timeout=30)
    assert _gone(marker), _processes(marker)


async def test_after_close_no_process_is_left() -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    async with BubblewrapProvider() as provider:
        sandbox = await provider.create(SandboxSpec())
        await sandbox.exec(["sh", "-c", "(setsid sh -c 'sleep 1000; :' " + marker + " &)"])
        assert _processes(marker)
        await sandbox.close()
        assert not _processes(marker)


async def test_a_killed_daemon_fails_pending_calls() -> None:
    async with BubblewrapProvider() as provider:
        sandbox = await provider.create(SandboxSpec())
        call = asyncio.create_task(sandbox.exec("sleep 1000"))
        await asyncio.sleep(0.1)
        sandbox._process.kill()
        with pytest.raises(SandboxGoneError):
            await asyncio.wait_for(call, 20)
        await sandbox.close()


async def test_a_cancelled_start_leaves_nothing() -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    async with BubblewrapProvider() as provider:
        await (await provider.create(SandboxSpec())).close()
        for delay in range(30):
            start = asyncio.create_task(provider.create(SandboxSpec(workdir=f"/{marker}")))
            await asyncio.sleep(delay * 0.0005)
            start.cancel()
            await asyncio.gather(start, return_exceptions=True)
        await provider.close()
        assert _gone(marker), _processes(marker)


STARTER = """
import asyncio, sys
from orchard_core.env import SandboxSpec, open_provider

async def main(marker):
    provider = open_provider("bubblewrap")
    await (await provider.create(SandboxSpec())).close()
    print("ready", flush=True)
    await asyncio.gather(*(provider.create(SandboxSpec(workdir="/" + marker)) for _ in range(4)))
    print("up", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.004, 0.008, 0.016, 0.032])
def test_a_program_killed_during_starts_leaves_nothing(delay: float) -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, marker], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        time.sleep(delay)
        program.kill()
    assert _gone(marker), _processes(marker)


FORKER = """
import asyncio, os, sys, time
from orchard_core.env import SandboxSpec, open_provider

async def main(marker):
    sandbox = await open_provider("bubblewrap").create(SandboxSpec(workdir="/" + marker))
    worker = os.fork()
    if worker == 0:
        time.sleep(1000)
    print(worker, flush=True)
    await sandbox.exec("sleep 1000")

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_forked_worker_does_not_keep_the_sandboxes_of_a_killed_program() -> None:
    marker = f"marker-{uuid.uuid4().hex}"
    program = subprocess.Popen([sys.executable, "-c", FORKER, marker], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    worker = int(program.stdout.readline())
    program.kill()
    program.wait()
    try:
        assert _gone(f"/{marker} "), _processes(marker)
    finally:
        os.kill(worker, signal.SIGKILL)
        program.stdout.close()


async def test_many_at_once() -> None:
    async with BubblewrapProvider() as provider:
        sandboxes = await asyncio.gather(*(provider.create(SandboxSpec()) for _ in range(16)))
        results = await asyncio.gather(*(sandbox.exec("hostname") for sandbox in sandboxes))
        assert {result.text.strip() for result in results} == {sandbox.id for sandbox in sandboxes}
