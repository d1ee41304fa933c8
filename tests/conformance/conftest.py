"""Every provider passes these tests; a new one is added to PROVIDERS."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from orchard_core.env import Provider, ProviderUnavailableError, Sandbox, SandboxSpec, open_provider

PROVIDERS = ("bubblewrap",)


@pytest.fixture(params=PROVIDERS)
async def provider(request: pytest.FixtureRequest) -> AsyncIterator[Provider]:
    made = open_provider(request.param)
    try:
        probe = await made.create(SandboxSpec())
    except ProviderUnavailableError as error:
        pytest.skip(str(error))
    await probe.close()
    yield made
    await made.close()


@pytest.fixture
async def sandbox(provider: Provider) -> AsyncIterator[Sandbox]:
    async with await provider.create(SandboxSpec()) as made:
        yield made
