"""What tests on a real cluster share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchard_core.env.providers.kubernetes.api import KubernetesApi
from orchard_core.env.providers.kubernetes.provider import KubernetesProvider

MASTER_KEY = "0f" * 32
Make = Callable[..., KubernetesProvider]


async def pods(cluster: KubernetesApi, namespace: str) -> list[dict[str, Any]]:
    """The namespace's pods that are not on their way out."""
    found = await cluster.get(f"/api/v1/namespaces/{namespace}/pods")
    return [pod for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]]
