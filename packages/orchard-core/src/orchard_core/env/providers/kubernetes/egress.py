"""Whether the cluster truly lets nothing out of a sandbox of network "none".

A NetworkPolicy is a wish: many clusters have no network that heeds it. So a real pod is asked to reach what
any pod of an open network reaches, the API server. If it can, sandboxes get the lock (an init container
that closes their own network namespace), and a locked one is asked again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from orchard_core.env.errors import EgressNotEnforcedError
from orchard_core.env.handle import Sandbox
from orchard_core.env.providers.kubernetes.options import KubernetesOptions

_log = logging.getLogger(__name__)

_ARRIVES = ("open", "refused")
_PROBE_S = 1.0


class EgressGuard:
    """Decides, once for a provider, how its sandboxes are closed.

    `make(lock)` gives a sandbox of network "none", which is destroyed afterwards.
    """

    def __init__(
        self, options: KubernetesOptions, api_server: str, make: Callable[[bool], Awaitable[Sandbox]]
    ) -> None:
        self._mode = options.egress_lock
        self._check = options.egress_check
        address = urlsplit(api_server)
        self._target = (address.hostname or "", address.port or 443)
        self._make = make
        self._lock = asyncio.Lock()
        self._decided: bool | None = None

    async def needs_lock(self) -> bool:
        """Whether pods must be locked. Raises EgressNotEnforcedError when the sandboxes can't be closed."""
        async with self._lock:
            if self._decided is None:
                self._decided = await self._decide()
            return self._decided

    async def is_open(self, lock: bool) -> bool:
        """Whether a sandbox, locked or not, reaches the API server."""
        sandbox = await self._make(lock)
        try:
            verdict = await sandbox.probe(*self._target, timeout_s=_PROBE_S)
        finally:
            await sandbox.close()
        return verdict in _ARRIVES

    async def _decide(self) -> bool:
        if not self._check:
            return self._mode == "always"
        if self._mode != "always" and not await self.is_open(lock=False):
            return False
        if self._mode == "never":
            raise EgressNotEnforcedError(
                'this cluster lets sandboxes of network "none" reach the outside: its network does not enforce '
                'NetworkPolicy. Install one that does, or set the option egress_lock to "auto"'
            )
        if await self.is_open(lock=True):
            raise EgressNotEnforcedError(
                "a locked sandbox still reaches the outside; this node's kernel may lack nf_tables"
            )
        _log.info(
            "the cluster does not enforce network policies; sandboxes close their own network namespace"
        )
        return True
