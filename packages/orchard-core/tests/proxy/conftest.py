"""A running proxy and OpenAI's own client for it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import openai
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for proxy_fakes

from orchard_core.engine.protocol import Engine, SamplingParams
from orchard_core.proxy import RecordingProxy, Session, SessionPolicy


class Running:
    """A started proxy with one open session and a client for it."""

    def __init__(self, proxy: RecordingProxy, session: Session, client: openai.AsyncOpenAI) -> None:
        self.proxy, self.session, self.client = proxy, session, client

    @property
    def url(self) -> str:
        host, port = self.proxy.address
        return f"http://{host}:{port}{self.session.base_path}"

    async def chat(self, messages: list[dict[str, Any]], **more: Any) -> Any:
        return await self.client.chat.completions.create(model="any", messages=messages, **more)


StartProxy = Callable[..., Any]


@pytest.fixture
async def start() -> AsyncIterator[StartProxy]:
    """Start a proxy over an engine; keywords go to the policy, `retries` to the client."""
    opened: list[Running] = []

    async def begin(engine: Engine, retries: int = 0, renderer: Any = None, **policy: Any) -> Running:
        policy.setdefault("sampling", SamplingParams(max_tokens=1000, seed=11))
        proxy = RecordingProxy(engine, renderer=renderer)
        await proxy.start()
        session = proxy.open_session("roll-1", SessionPolicy(**policy))
        host, port = proxy.address
        client = openai.AsyncOpenAI(
            base_url=f"http://{host}:{port}{session.base_path}", api_key=session.secret, max_retries=retries
        )
        opened.append(Running(proxy, session, client))
        return opened[-1]

    yield begin
    for running in opened:
        await running.client.close()
        await running.proxy.close()
