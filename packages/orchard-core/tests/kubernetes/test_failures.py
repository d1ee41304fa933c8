"""Why a sandbox did not come up or ended, said truly and soon; and nothing is left behind."""

from __future__ import annotations

import asyncio
import time

import pytest

from kubernetes_cluster import Make, pods
from orchard_core.env import SandboxGoneError, SandboxSpec, SandboxStartError
from orchard_core.env.errors import SandboxQuotaError
from orchard_core.env.providers.kubernetes.api import KubernetesApi


async def fails(make: Make, spec: SandboxSpec, within_s: float, match: str, **options: object) -> None:
    began = time.monotonic()
    with pytest.raises(SandboxStartError, match=match):
        await make(**options).create(spec)
    assert time.monotonic() - began < within_s


async def test_an_image_that_does_not_exist_is_named_within_seconds(
    make: Make, cluster: KubernetesApi, namespace: str
) -> None:
    await fails(make, SandboxSpec(image="localhost:1/no/such:image"), 30, "localhost:1/no/such:image")
    await fails(make, SandboxSpec(image="orchard.local/none:dev"), 30, "none:dev", pull_policy="Never")
    await fails(make, SandboxSpec(image="NOT A NAME"), 30, "NOT A NAME")
    assert await pods(cluster, namespace) == []


async def test_a_pod_that_no_node_can_take_says_so(
    make: Make, cluster: KubernetesApi, namespace: str
) -> None:
    await fails(make, SandboxSpec(cpu=1000), 30, "no node can take it: .*cpu", unschedulable_s=2.0)
    assert await pods(cluster, namespace) == []


async def test_a_quota_is_named(make: Make, cluster: KubernetesApi, namespace: str) -> None:
    await cluster.create(
        f"/api/v1/namespaces/{namespace}/resourcequotas",
        {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}},
    )
    await asyncio.sleep(1)
    with pytest.raises(SandboxQuotaError, match="quota"):
        await make().create(SandboxSpec())


async def test_a_working_directory_that_can_not_be_made_is_named(make: Make) -> None:
    await fails(make, SandboxSpec(workdir="/proc/x"), 60, "/proc/x")


async def test_memory_that_runs_out_takes_the_workload_and_spares_sandboxd(make: Make) -> None:
    async with await make().create(SandboxSpec(memory_bytes=128 << 20)) as sandbox:
        result = await sandbox.exec(["python3", "-c", "x = b'x' * (1 << 30)"], timeout=60)
        assert result.exit_code == -9
        assert (await sandbox.exec("echo alive")).text == "alive\n"


async def test_a_fork_bomb_stays_inside(make: Make) -> None:
    provider = make()
    bombed, other = await asyncio.gather(
        provider.create(SandboxSpec(pids=200)), provider.create(SandboxSpec())
    )
    await bombed.exec("b() { b | b & }; b; sleep 1", timeout=3)
    assert (await other.exec("echo undisturbed")).text == "undisturbed\n"
    await bombed.close()
    assert (await other.exec("echo undisturbed")).text == "undisturbed\n"


async def test_a_cancelled_creation_leaves_no_pod(make: Make, cluster: KubernetesApi, namespace: str) -> None:
    creating = asyncio.create_task(make().create(SandboxSpec()))
    await asyncio.sleep(0.4)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert await pods(cluster, namespace) == []


async def test_a_dead_sandboxd_is_a_gone_sandbox(make: Make) -> None:
    """Only root of the node could do this; the pod's end must be noticed all the same."""
    sandbox = await make().create(SandboxSpec())
    waiting = asyncio.create_task(sandbox.exec("sleep 100"))
    await asyncio.sleep(0.2)
    await sandbox.renew(ttl_s=0.2)
    with pytest.raises(SandboxGoneError):
        await waiting
