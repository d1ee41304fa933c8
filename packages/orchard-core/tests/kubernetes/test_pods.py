"""Pods as sandboxes, on a real cluster: what they may do, who reaches them, how they end."""

from __future__ import annotations

import asyncio
import json

import pytest

from kubernetes_cluster import Make, pods
from orchard_core.env import SandboxExpiredError, SandboxGoneError, SandboxIdentityError, SandboxSpec
from orchard_core.env.dial import TcpAddress, dial
from orchard_core.env.errors import SandboxExistsError, SandboxNotFoundError
from orchard_core.env.providers.kubernetes.api import KubernetesApi
from orchard_core.env.proving import Credentials
from orchard_core.errors import UsageError
from waiting import becomes


async def test_a_pod_is_confined(make: Make, cluster: KubernetesApi, namespace: str) -> None:
    async with await make().create(SandboxSpec()) as sandbox:
        told = (
            await sandbox.exec(
                "grep -E '^(Cap|NoNewPrivs|Seccomp):?' /proc/self/status; id -u; env; ls /var/run/secrets /run/secrets 2>&1"
            )
        ).text
        assert "CapEff:\t0000000000000000" in told
        assert "CapBnd:\t0000000000000000" in told
        assert "NoNewPrivs:\t1" in told
        assert "1000\n" in told
        assert "KUBERNETES" not in told
        assert "serviceaccount" not in told
        (pod,) = await pods(cluster, namespace)
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert "volumeMounts" in pod["spec"]["containers"][0]
        assert (
            await sandbox.exec("kill -9 1; kill -TERM 1; echo x > /.orchard/sandboxd.pyz; echo alive")
        ).text == "alive\n"


async def test_the_images_own_settings_hold(make: Make) -> None:
    async with await make(image="orchard.local/busybox:dev").create(SandboxSpec(workdir="")) as sandbox:
        assert (await sandbox.exec("pwd; echo $GREETING; id -u; ls /lib* 2>&1 | head -1")).text.startswith(
            "/srv\nhello\n1234\n"
        )


async def test_another_replica_serves_the_same_sandbox(make: Make) -> None:
    sandbox = await make().create(SandboxSpec(labels={"team": "a"}))
    await sandbox.start("sleep 0.5; echo x >> /tmp/count; cat /tmp/count", exec_id="job")
    other = make()

    async def found() -> object:
        return [(info.id, info.status, info.labels) for info in await other.find({"team": "a"})]

    await becomes(found, [(sandbox.id, "ready", {"team": "a"})])
    assert await other.find({"team": "b"}) == []
    again = await other.attach(sandbox.id)
    assert (await again.attach("job")).text == "x\n"
    assert again.spec == sandbox.spec
    waiting = asyncio.create_task(sandbox.exec("sleep 100"))
    await asyncio.sleep(0.2)
    await other.destroy(sandbox.id)
    with pytest.raises(SandboxGoneError):
        async with asyncio.timeout(20):
            await waiting
    with pytest.raises(SandboxNotFoundError, match="nothing-of-that-name"):
        await other.attach("nothing-of-that-name")


async def test_a_pod_deleted_behind_its_back_is_gone_at_once_and_says_so(
    make: Make, cluster: KubernetesApi, namespace: str
) -> None:
    provider = make()
    sandbox, other = await asyncio.gather(provider.create(SandboxSpec()), provider.create(SandboxSpec()))
    waiting = asyncio.create_task(sandbox.exec("sleep 100"))
    await asyncio.sleep(0.3)
    await cluster.delete(f"/api/v1/namespaces/{namespace}/pods/{sandbox.id}")
    with pytest.raises(SandboxGoneError, match="deleted"):
        async with asyncio.timeout(10):
            await waiting
    assert (await other.exec("echo undisturbed")).text == "undisturbed\n"


async def test_two_clients_that_ask_for_one_id_get_one_pod(
    make: Make, cluster: KubernetesApi, namespace: str
) -> None:
    one, two = make(), make()
    spec = SandboxSpec(env={"A": "1"})
    first, second = await asyncio.gather(
        one.create(spec, sandbox_id="mine"), two.create(spec, sandbox_id="mine")
    )
    await first.write_file("/tmp/f", b"seen")
    assert await second.read_file("/tmp/f") == b"seen"
    assert len([pod for pod in await pods(cluster, namespace) if pod["metadata"]["name"] == "mine"]) == 1
    with pytest.raises(SandboxExistsError, match="mine"):
        await two.create(SandboxSpec(env={"A": "2"}), sandbox_id="mine")
    assert (await first.exec("echo still here")).text == "still here\n"


async def test_a_bad_id_and_what_a_pod_can_not_be_are_usage_errors(make: Make) -> None:
    provider = make()
    with pytest.raises(UsageError, match="a-z"):
        await provider.create(SandboxSpec(), sandbox_id="Not_Good")
    with pytest.raises(UsageError, match="network"):
        await provider.create(SandboxSpec(network="host"))
    with pytest.raises(UsageError, match="memory_bytes must be positive"):
        await provider.create(SandboxSpec(memory_bytes=0))


async def test_a_pod_at_a_used_address_does_not_take_anothers_command(
    make: Make, cluster: KubernetesApi, namespace: str
) -> None:
    """Pod addresses are used again; a client that still believes in the old one is refused."""
    sandbox = await make().create(SandboxSpec())
    (pod,) = await pods(cluster, namespace)
    address = TcpAddress(pod["status"]["podIP"], 7070)
    for credentials in (
        Credentials(b"k" * 32, pod["metadata"]["uid"]),
        Credentials(b"k" * 32, "another-uid"),
    ):
        with pytest.raises(SandboxIdentityError):
            await dial(address, credentials, lambda *_: None)
    assert (await sandbox.exec("echo mine")).text == "mine\n"


async def test_the_lease_ends_the_pod_itself(make: Make, cluster: KubernetesApi, namespace: str) -> None:
    provider = make()
    sandbox = await provider.create(SandboxSpec(ttl_s=2.0))
    with pytest.raises(SandboxExpiredError, match="ttl_s"):
        await sandbox.exec("sleep 100")
    path = f"/api/v1/namespaces/{namespace}/pods/{sandbox.id}"

    async def phase() -> object:
        return (await cluster.get(path))["status"]["phase"]

    await becomes(phase, "Succeeded")


async def test_a_client_that_is_killed_leaves_a_sandbox_that_its_lease_ends(make: Make) -> None:
    sandbox = await make().create(SandboxSpec(idle_s=1.0))
    await sandbox.detach()
    other = make()

    async def status() -> object:
        return (await other.find())[0].status

    await becomes(status, "gone")


async def test_secrets_are_nowhere_in_what_is_listed(
    make: Make, cluster: KubernetesApi, namespace: str
) -> None:
    sandbox = await make().create(SandboxSpec())
    (pod,) = await pods(cluster, namespace)
    assert "0f0f0f" not in json.dumps(pod)  # the master key
    log = (await sandbox.exec("true")).text
    assert log == ""
