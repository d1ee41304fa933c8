"""A sandbox ends when its time is up or nobody used it, and says which."""

from __future__ import annotations

import asyncio

import pytest

from orchard_core.env import Provider, Sandbox, SandboxExpiredError, SandboxSpec


async def test_the_time_limit_ends_a_running_command_and_is_named(provider: Provider) -> None:
    async with await provider.create(SandboxSpec(ttl_s=1.5)) as sandbox:
        with pytest.raises(SandboxExpiredError, match="ttl_s"):
            await sandbox.exec("sleep 100")


async def test_an_idle_sandbox_ends_and_says_so(provider: Provider) -> None:
    async with await provider.create(SandboxSpec(idle_s=0.5)) as sandbox:
        await sandbox.exec("true")
        await asyncio.sleep(1.5)
        with pytest.raises(SandboxExpiredError, match="idle"):
            await sandbox.exec("true")


async def test_a_command_that_runs_is_use(provider: Provider) -> None:
    async with await provider.create(SandboxSpec(idle_s=0.6)) as sandbox:
        assert (await sandbox.exec("sleep 1.5; echo done")).text == "done\n"
        await sandbox.start("sleep 1.5; echo done", exec_id="job")
        await asyncio.sleep(1.2)
        assert (await sandbox.attach("job")).text == "done\n"


async def test_a_lease_is_renewed(provider: Provider) -> None:
    async with await provider.create(SandboxSpec(ttl_s=2.0, idle_s=30.0)) as sandbox:
        left = await sandbox.lease()
        assert 0 < left.ttl_left_s <= 2.0
        assert left.idle_left_s is not None
        assert 25 < left.idle_left_s <= 30.0
        left = await sandbox.renew(ttl_s=60, idle_s=20)
        assert 50 < left.ttl_left_s <= 60
        await asyncio.sleep(2.5)
        assert (await sandbox.exec("echo alive")).text == "alive\n"


async def test_sandboxd_is_small(sandbox: Sandbox) -> None:
    await sandbox.exec("true")
    seen = await sandbox.statistics()
    assert 1 << 20 < seen.rss_bytes < 20 << 20
    assert seen.running == 0
    assert seen.processes >= 1
