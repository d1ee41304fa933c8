"""What tests on a real cluster share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from orchard_core.env.providers.kubernetes.api import KubernetesApi
from orchard_core.env.providers.kubernetes.provider import KubernetesProvider

MASTER_KEY = "0f" * 32
Make = Callable[..., KubernetesProvider]


async def pods(cluster: KubernetesApi, namespace: str) -> list[dict[str, Any]]:
    """The namespace's pods that are not on their way out."""
    found = await cluster.get(f"/api/v1/namespaces/{namespace}/pods")
    return [pod for pod in found["items"] if "deletionTimestamp" not in pod["metadata"]]


async def becomes(look: Callable[[], Awaitable[object]], wanted: object, patience_s: float = 20.0) -> None:
    """Look again and again until `look()` gives `wanted`."""
    deadline = time.monotonic() + patience_s
    while (seen := await look()) != wanted:
        assert time.monotonic() < deadline, f"it is still {seen!r}"
        await asyncio.sleep(0.1)
