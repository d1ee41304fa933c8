"""A namespace of its own on a real cluster, and its API."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kubernetes_cluster import MASTER_KEY, Make
from orchard_core.env.providers.kubernetes.api import KubernetesApi
from orchard_core.env.providers.kubernetes.options import KubernetesOptions
from orchard_core.env.providers.kubernetes.provider import KubernetesProvider


@pytest.fixture
async def cluster(kubeconfig: Path) -> AsyncIterator[KubernetesApi]:
    api = await KubernetesApi.connect(KubernetesOptions(kubeconfig=str(kubeconfig)))
    yield api
    await api.close()


@pytest.fixture
async def namespace(cluster: KubernetesApi) -> AsyncIterator[str]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    await cluster.create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    await cluster.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
async def make(kubeconfig: Path, namespace: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Make]:
    """Makes providers, which share a master key as replicas do; at the end no pod of theirs is left."""
    monkeypatch.setenv("ORCHARD_MASTER_KEY", MASTER_KEY)
    made = []

    def one(**options: Any) -> KubernetesProvider:
        given = {"egress_lock": "always", "egress_check": False, "image": "orchard.local/base:dev", **options}
        provider = KubernetesProvider(
            KubernetesOptions(kubeconfig=str(kubeconfig), namespace=namespace, **given)
        )
        made.append(provider)
        return provider

    yield one
    for provider in made:
        await provider.close()
