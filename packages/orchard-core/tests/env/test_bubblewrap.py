"""What a bubblewrap sandbox hides, forbids and bounds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import orchard_core
from orchard_core.env import (
    Mount,
    ProviderUnavailableError,
    Sandbox,
    SandboxError,
    SandboxSpec,
    SandboxStartError,
    open_provider,
)
from orchard_core.env.providers.bubblewrap import BubblewrapProvider
from orchard_core.errors import UsageError


@pytest.fixture
async def provider() -> AsyncIterator[BubblewrapProvider]:
    async with BubblewrapProvider() as made:
        yield made


@pytest.fixture
async def sandbox(provider: BubblewrapProvider) -> AsyncIterator[Sandbox]:
    async with await provider.create(SandboxSpec()) as made:
        yield made


async def test_there_is_no_network_but_loopback(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("ls /sys/class/net 2>/dev/null; grep -c : /proc/net/dev")).text == "1\n"
    script = (
        "import socket\n"
        "for address in (('1.1.1.1', 53), ('10.0.0.1', 80)):\n"
        "    try: socket.create_connection(address, 3); print('connected')\n"
        "    except OSError as error: print(error.errno)"
    )
    assert (await sandbox.exec(["python3", "-c", script])).text == "101\n101\n"  # ENETUNREACH


async def test_the_hosts_listeners_are_out_of_reach(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        result = await sandbox.exec(["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}"])
    assert not result.ok


@pytest.mark.parametrize(
    "path", ["/etc/shadow", "/root", "/var", "/srv", "/sys", "/boot", "/etc/ssl/private", "/opt"]
)
async def test_host_files_are_invisible(sandbox: Sandbox, path: str) -> None:
    assert not (await sandbox.exec(["test", "-e", path])).ok


async def test_host_files_made_by_the_user_are_invisible(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    assert not (await sandbox.exec(["test", "-e", str(tmp_path / "secret")])).ok
    assert (await sandbox.exec("ls -A /tmp /home /home/agent")).text.split() == [
        "/home:",
        "agent",
        "/home/agent:",
        "/tmp:",
    ]


@pytest.mark.parametrize("path", ["/", "/usr", "/etc", "/bin", "/dev", "/run", "/home", "/usr/lib"])
async def test_the_system_is_read_only(sandbox: Sandbox, path: str) -> None:
    result = await sandbox.exec(["touch", f"{path}/x"])
    assert result.exit_code == 1
    assert b"Read-only" in result.stderr or b"denied" in result.stderr


async def test_what_programs_need_of_the_system_is_readable(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("ls /etc/ssl/certs /run/orchard /home/agent && id -un")).text.endswith(
        "agent\n"
    )


@pytest.mark.parametrize("path", ["/workspace", "/home/agent", "/tmp", "/dev/shm"])
async def test_the_private_folders_are_writable(sandbox: Sandbox, path: str) -> None:
    assert (await sandbox.exec(["touch", f"{path}/x"])).ok


async def test_the_workload_has_no_privileges(sandbox: Sandbox) -> None:
    status = (
        await sandbox.exec("id -u; grep -E 'CapEff|CapPrm|CapAmb|NoNewPrivs' /proc/self/status")
    ).text.split()
    assert status == [
        "1000",
        "CapPrm:",
        "0" * 16,
        "CapEff:",
        "0" * 16,
        "CapAmb:",
        "0" * 16,
        "NoNewPrivs:",
        "1",
    ]


async def test_kernel_settings_cannot_be_written(sandbox: Sandbox) -> None:
    # Root's own user id may write these without any capability. The write puts back what is there.
    script = "for f in /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname; do cat $f > /tmp/v; cat /tmp/v > $f; done"
    result = await sandbox.exec(script)
    assert result.stderr.count(b"denied") + result.stderr.count(b"Read-only") == 2


async def test_no_new_user_namespaces_inside(sandbox: Sandbox) -> None:
    assert not (await sandbox.exec(["unshare", "--user", "true"])).ok


async def test_the_daemon_cannot_be_traced_or_read(sandbox: Sandbox) -> None:
    for path in ("/proc/1/environ", "/proc/1/mem", "/proc/1/fd/2"):
        assert not (await sandbox.exec(["head", "-c1", path])).ok


async def test_processes_of_other_sandboxes_are_invisible(
    provider: BubblewrapProvider, sandbox: Sandbox
) -> None:
    async with await provider.create(SandboxSpec()) as other:
        await other.exec("sleep 4713 >/dev/null 2>&1 &")
        assert "4713" in (await other.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).text
        assert (
            "4713" not in (await sandbox.exec("cat /proc/[0-9]*/cmdline | grep -v grep | tr '\\0' ' '")).text
        )


async def test_sandboxes_share_no_files(provider: BubblewrapProvider, sandbox: Sandbox) -> None:
    await sandbox.write_file("/tmp/mine", b"x")
    async with await provider.create(SandboxSpec()) as other:
        assert (await other.exec("ls -A /tmp")).text == ""


async def test_mounts_are_read_only_and_visible(provider: BubblewrapProvider, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("shown")
    os.chmod(tmp_path, 0o755)
    spec = SandboxSpec(
        mounts=(Mount(str(tmp_path), "/home/agent/.cache/deep/tool"), Mount(str(tmp_path / "f"), "/opt/f"))
    )
    async with await provider.create(spec) as sandbox:
        result = await sandbox.exec(
            "cat .cache/deep/tool/f /opt/f; touch .cache/own; touch .cache/deep/tool/x", cwd="/home/agent"
        )
        assert result.stdout == b"shownshown"
        assert result.exit_code == 1
        assert b"own" not in result.stderr
    assert os.listdir(tmp_path) == ["f"]


async def test_a_missing_mount_is_said(provider: BubblewrapProvider) -> None:
    with pytest.raises(SandboxStartError, match="/no/such"):
        await provider.create(SandboxSpec(mounts=(Mount("/no/such", "/opt/x"),)))


@pytest.mark.parametrize("workdir", ["/testbed/deep", "/workspace/sub", "/tmp/w"])
async def test_any_workdir_is_made_and_writable(provider: BubblewrapProvider, workdir: str) -> None:
    async with await provider.create(SandboxSpec(workdir=workdir)) as sandbox:
        assert (await sandbox.exec("touch x; pwd")).text == workdir + "\n"
        assert b"x" in (await sandbox.exec("ls")).stdout


async def test_disk_is_bounded(provider: BubblewrapProvider) -> None:
    async with await provider.create(SandboxSpec(disk_bytes=1 << 20)) as sandbox:
        assert b"No space" in (await sandbox.exec("head -c 2000000 /dev/zero > big")).stderr
        with pytest.raises(SandboxError, match="No space"):
            await sandbox.write_file("/tmp/big", b"x" * 2_000_000)
        assert (await sandbox.exec("ls -A /tmp")).text == ""


async def test_processes_are_bounded_and_the_sandbox_recovers(provider: BubblewrapProvider) -> None:
    async with await provider.create(SandboxSpec(pids=20)) as sandbox:
        result = await sandbox.exec(
            ["bash", "-c", "for i in $(seq 40); do sleep 100 & done; wait"], timeout=2
        )
        assert b"Resource temporarily unavailable" in result.stderr
        assert (await sandbox.exec("echo fine")).text == "fine\n"


async def test_a_fork_bomb_is_killed_by_its_timeout(provider: BubblewrapProvider) -> None:
    async with await provider.create(SandboxSpec(pids=60)) as sandbox:
        result = await sandbox.exec(["bash", "-c", "b() { b | b & }; b; sleep 100"], timeout=0.5)
        assert result.timed_out
        assert (await sandbox.exec("echo fine", timeout=20)).text == "fine\n"


async def test_memory_of_a_process_is_bounded(provider: BubblewrapProvider) -> None:
    async with await provider.create(SandboxSpec(memory_bytes=200 << 20)) as sandbox:
        result = await sandbox.exec(["python3", "-c", "x = bytearray(400 << 20)"])
        assert b"MemoryError" in result.stderr
        assert (await sandbox.exec(["python3", "-c", "x = bytearray(10 << 20)"])).ok


@pytest.mark.parametrize(
    "spec",
    [
        SandboxSpec(image="debian:12"),
        SandboxSpec(workdir="relative"),
        SandboxSpec(workdir="/a/../b"),
        SandboxSpec(pids=0),
        SandboxSpec(ttl_s=-1),
        SandboxSpec(mounts=(Mount("/usr", "/"),)),
    ],
)
async def test_a_spec_that_cannot_be_met_is_refused(provider: BubblewrapProvider, spec: SandboxSpec) -> None:
    with pytest.raises(UsageError):
        await provider.create(spec)


async def test_missing_bwrap_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ProviderUnavailableError, match="apt-get install bubblewrap"):
        await BubblewrapProvider().create(SandboxSpec())


async def test_forbidden_namespaces_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text(
        "#!/bin/sh\necho 'bwrap: Creating new namespace failed: Operation not permitted' >&2\nexit 1\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ProviderUnavailableError, match="unprivileged user namespaces"):
        await BubblewrapProvider().create(SandboxSpec())


async def test_a_failed_start_shows_what_bwrap_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: the moon is full' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SandboxStartError, match="the moon is full"):
        await BubblewrapProvider().create(SandboxSpec())


async def test_no_descriptors_leak(provider: BubblewrapProvider) -> None:
    async with await provider.create(SandboxSpec()):
        pass
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        async with await provider.create(SandboxSpec()) as sandbox:
            await sandbox.exec("true")
    assert len(os.listdir("/proc/self/fd")) <= before + 1


ROOTLESS = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from orchard_core.env import SandboxSpec, open_provider

async def main():
    async with await open_provider("bubblewrap").create(SandboxSpec()) as sandbox:
        print((await sandbox.exec("id -u; touch x; ls; unshare -U true || echo refused")).text)

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="all the other tests are rootless already")
def test_it_works_rootless() -> None:
    source = str(Path(orchard_core.__file__).parent.parent)
    nobody: dict[str, Any] = {
        "user": 65534,
        "group": 65534,
        "extra_groups": [],
        "cwd": "/",
        "capture_output": True,
    }
    program = ["/usr/bin/python3", "-c", ROOTLESS, source]
    probe = [*program[:2], "import sys; sys.path.insert(0, sys.argv[1]); import orchard_core.env", source]
    if not os.path.exists(program[0]) or subprocess.run(probe, check=False, **nobody).returncode:
        pytest.skip("another user can't read this code, or has no Python of 3.11 or newer")
    # Not pytest's own folder, of which the parents are closed to other users.
    with tempfile.TemporaryDirectory() as cache:
        os.chmod(cache, 0o777)
        env = {"PATH": os.environ["PATH"], "ORCHARD_CACHE": cache}
        done = subprocess.run(program, env=env, timeout=60, check=False, **nobody)
    assert done.stdout.split() == [b"1000", b"x", b"refused"], done.stderr


def test_a_misspelt_provider_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="bubblewrap"):
        open_provider("bublewrap")


def test_opening_a_provider_imports_nothing_heavy() -> None:
    code = "import sys, orchard_core.env as e; e.open_provider('bubblewrap'); print([m for m in ('torch', 'pydantic', 'aiohttp', 'httpx', 'kubernetes') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
