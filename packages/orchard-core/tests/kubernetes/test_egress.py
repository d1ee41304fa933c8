"""Nothing leaves a sandbox of network "none", whether or not the cluster sees to it. This one does not."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from kubernetes_cluster import Make, pods
from orchard_core.env import SandboxSpec
from orchard_core.env.errors import EgressNotEnforcedError
from orchard_core.env.providers.kubernetes.api import KubernetesApi


async def test_policies_that_nobody_enforces_are_found_out_and_made_up_for(
    make: Make, cluster: KubernetesApi, namespace: str
) -> None:
    provider = make(egress_lock="auto", egress_check=True)
    api = urlsplit(cluster.host)
    assert api.hostname is not None
    opened = await provider.create(SandboxSpec(network="cluster"))
    closed = await provider.create(SandboxSpec())
    assert await opened.probe(api.hostname, api.port or 443) == "open"
    assert await closed.probe(api.hostname, api.port or 443) in ("timeout", "unreachable")
    assert await closed.probe("169.254.169.254", 80, timeout_s=1) in ("timeout", "unreachable")
    addresses = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in await pods(cluster, namespace)}
    assert await closed.probe(addresses[opened.id], 7070, timeout_s=1) in ("timeout", "unreachable")
    assert (await closed.exec("echo served all the same")).text == "served all the same\n"
    assert len(addresses) == 2  # the pods that were asked are gone


async def test_without_the_lock_it_refuses_rather_than_pretends(make: Make) -> None:
    with pytest.raises(EgressNotEnforcedError, match="does not enforce"):
        await make(egress_lock="never", egress_check=True).create(SandboxSpec())


async def test_a_workload_can_not_lift_the_lock(make: Make) -> None:
    async with await make().create(SandboxSpec()) as sandbox:
        undo = "import socket; socket.socket(16, socket.SOCK_RAW, 12).send(bytes(16))"
        assert (
            "CapEff:\t0000000000000000"
            in (await sandbox.exec(f"python3 -c '{undo}'; grep CapEff /proc/self/status")).text
        )
        assert await sandbox.probe("10.0.0.1", 80, timeout_s=1) in ("timeout", "unreachable")


async def test_the_policies_are_the_namespaces(make: Make, cluster: KubernetesApi, namespace: str) -> None:
    for _replica in range(2):
        await make().find()
    path = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
    found = {item["metadata"]["name"]: item["spec"] for item in (await cluster.get(path))["items"]}
    assert set(found) == {"orchard-sandbox-ingress", "orchard-sandbox-no-egress"}
    assert found["orchard-sandbox-no-egress"]["policyTypes"] == ["Egress"]
    assert not found["orchard-sandbox-no-egress"].get("egress")
