"""What changed in a sandbox's file systems, as a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from orchard_core.env.client.base import LinkUser, incoming, upload


class Changes(LinkUser):
    """Taking and putting changes. Which folders are a sandbox's own, its provider says."""

    snapshot_roots: Sequence[str] = ("/",)
    snapshot_since_start = True

    async def changes(self) -> AsyncIterator[bytes]:
        """A tar, piece by piece, of what was made, changed and removed since the sandbox began."""
        request = {
            "op": "changes",
            "roots": list(self.snapshot_roots),
            "since_start": self.snapshot_since_start,
        }
        async for data in incoming(await self._open(request), None):
            yield data

    async def apply_changes(self, source: AsyncIterator[bytes]) -> None:
        """Make the sandbox's folders look as a tar of `changes` says."""
        await upload(await self._open({"op": "apply"}), source)
