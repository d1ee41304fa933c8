"""A place with real bubblewrap sandboxes and a real recording proxy."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for rollout_kit

from rollout_kit import SOLVE, Place, WatchedProvider, WatchedProxy

from orchard_core.engine.scripted import ScriptedEngine
from orchard_core.env import open_provider


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    provider = WatchedProvider(open_provider("bubblewrap", {}))
    proxy = WatchedProxy(ScriptedEngine(SOLVE))
    await proxy.start()
    try:
        yield Place(provider, proxy)
    finally:
        await proxy.close()
        await provider.close()
