"""Every provider passes these tests.

The built-in ones are in PROVIDERS. For another one (its package installed), name it:
`ORCHARD_CONFORMANCE=NAME ORCHARD_CONFORMANCE_OPTIONS='{"key": "value"}' pytest tests/conformance`.
An image for these tests has a POSIX shell, coreutils, procps-like /proc, python3 and git, a user with
a writable HOME of /home/agent, and a writable /workspace.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest

from orchard_core.env import Provider, ProviderUnavailableError, Sandbox, SandboxSpec, open_provider

Options = Mapping[str, Any]


def _docker(request: pytest.FixtureRequest) -> Options:
    return {"url": request.getfixturevalue("docker_host"), "image": "orchard.local/base:dev"}


def _kubernetes(request: pytest.FixtureRequest) -> Options:
    # The check by a pod of its own has its own tests; here it would be paid for by every test.
    return {
        "kubeconfig": str(request.getfixturevalue("kubeconfig")),
        "image": "orchard.local/base:dev",
        "egress_lock": "always",
        "egress_check": False,
    }


PROVIDERS: Mapping[str, Callable[[pytest.FixtureRequest], Options]] = {
    "bubblewrap": lambda _request: {},
    "docker": _docker,
    "kubernetes": _kubernetes,
}
NAMED = os.environ.get("ORCHARD_CONFORMANCE")


@pytest.fixture(params=[NAMED] if NAMED else list(PROVIDERS))
async def provider(request: pytest.FixtureRequest) -> AsyncIterator[Provider]:
    given = os.environ.get("ORCHARD_CONFORMANCE_OPTIONS", "{}")
    options = json.loads(given) if NAMED else PROVIDERS[request.param](request)
    made = open_provider(request.param, options)
    if request.param == "bubblewrap":
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
