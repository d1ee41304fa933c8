"""A sandbox's lease, and what its daemon says about itself."""

from __future__ import annotations

from typing import Any

from orchard_core.env.client.base import LinkUser
from orchard_core.env.errors import SandboxError
from orchard_core.env.handle import LeaseLeft, SandboxStatistics


class Lifetime(LinkUser):
    """Looking at the lease and renewing it."""

    async def lease(self) -> LeaseLeft:
        """What is left; asking counts as use."""
        return await self._lease({"op": "lease"})

    async def renew(self, *, ttl_s: float | None = None, idle_s: float | None = None) -> LeaseLeft:
        """Count the time limit anew from now, or set another limit on idleness (seconds).

        Where the provider bounds a sandbox's whole life besides (a pod's deadline), that bound stays.
        """
        request = {"op": "renew", "ttl_s": _seconds(ttl_s), "idle_s": _seconds(idle_s)}
        return await self._lease(request)

    async def statistics(self) -> SandboxStatistics:
        answer = await self._call({"op": "stat"})
        try:
            return SandboxStatistics(**answer)
        except TypeError as error:
            raise SandboxError("sandboxd gave an unreadable answer to stat") from error

    async def _lease(self, request: dict[str, Any]) -> LeaseLeft:
        answer = await self._call(request)
        try:
            return LeaseLeft(**answer)
        except TypeError as error:
            raise SandboxError("sandboxd gave an unreadable lease") from error


def _seconds(value: float | None) -> float | None:
    return None if value is None else float(value)
