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

    async def digest(self, roots: Sequence[str] | None = None) -> str:
        """The sha256 (hex) over paths, kinds, modes, link targets and contents below `roots`.

        By default of all file systems that are the sandbox's own, which for a sandbox of an image means
        reading the whole image. Sandboxes with equal digests hold equal files there.
        """
        request = {"op": "digest", "roots": list(self.snapshot_roots if roots is None else roots)}
        return (await self._gather(request)).decode("ascii", "replace")

    async def apply_changes(self, source: AsyncIterator[bytes]) -> None:
        """Make the sandbox's folders look as a tar of `changes` says."""
        await upload(await self._open({"op": "apply"}), source)
