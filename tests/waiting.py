"""Waiting for what comes about by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable


async def becomes(look: Callable[[], Awaitable[object]], wanted: object, patience_s: float = 20.0) -> None:
    """Look again and again until `look()` gives `wanted`."""
    deadline = time.monotonic() + patience_s
    while (seen := await look()) != wanted:
        assert time.monotonic() < deadline, f"it is still {seen!r}"
        await asyncio.sleep(0.1)
