from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from orchard_core.engine.errors import ContextOverflowError, EngineError
from orchard_core.engine.loading import ModelFolder
from orchard_core.engine.openai_compat import OpenAIEngine
from orchard_core.engine.protocol import ChatRequest, MessageEngine, SamplingParams, TokenEngine
from orchard_core.engine.scripted import ScriptedEngine, ScriptedTokenEngine
from orchard_core.errors import UsageError

REQUEST = ChatRequest(
    model="asked",
    messages=[{"role": "user", "content": "hi"}],
    sampling=SamplingParams(temperature=0.5, seed=3, max_tokens=9),
    extra={"stream_options": {"include_usage": True}, "user": "me"},
)
ANSWER = {
    "prompt_token_ids": [1, 2, 3],
    "choices": [
        {
            "message": {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]},
            "finish_reason": "tool_calls",
            "token_ids": [4, 5],
            "logprobs": {"content": [{"token": "x", "logprob": -0.25}, {"token": "y", "logprob": -1.5}]},
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}


class Endpoint:
    """A real HTTP server with a settable answer."""

    def __init__(self) -> None:
        self.status, self.answer = 200, json.dumps(ANSWER)
        self.bodies: list[Any] = []
        self.headers: list[Any] = []
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        self.server = TestServer(app)

    async def _complete(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        self.headers.append(request.headers)
        return web.Response(status=self.status, text=self.answer, content_type="application/json")


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    endpoint = Endpoint()
    await endpoint.server.start_server()
    yield endpoint
    await endpoint.server.close()


def engine_for(endpoint: Endpoint, **options: Any) -> OpenAIEngine:
    return OpenAIEngine(str(endpoint.server.make_url("/v1")), "served", "secret", **options)


async def test_a_remote_reply_carries_reported_ids_and_logprobs(endpoint: Endpoint) -> None:
    engine = engine_for(endpoint, token_ids=True, logprobs=True)
    reply = await engine.complete(REQUEST)
    await engine.close()
    assert isinstance(engine, MessageEngine)
    assert (reply.prompt_ids, reply.token_ids, reply.logprobs) == ((1, 2, 3), (4, 5), (-0.25, -1.5))
    assert reply.message == {"role": "assistant", "content": "", "tool_calls": [{"id": "a"}]}
    assert (reply.finish_reason, reply.prompt_tokens, reply.completion_tokens) == ("tool_calls", 3, 2)
    body = endpoint.bodies[0]
    assert body["return_token_ids"] is body["logprobs"] is True
    assert (body["model"], body["seed"], body["max_tokens"], body["user"]) == ("served", 3, 9, "me")
    assert "stream_options" not in body
    assert endpoint.headers[0]["authorization"] == "Bearer secret"


async def test_ids_are_not_asked_for_unless_told(endpoint: Endpoint) -> None:
    engine = engine_for(endpoint)
    await engine.complete(REQUEST)
    await engine.close()
    assert not {"return_token_ids", "logprobs"} & set(endpoint.bodies[0])


@pytest.mark.parametrize(
    ("status", "answer", "error"),
    [
        (400, '{"error": {"code": "context_length_exceeded"}}', ContextOverflowError),
        (400, '{"error": "This model\'s maximum context length is 4096 tokens"}', ContextOverflowError),
        (422, '{"error": "bad tool"}', UsageError),
        (401, "{}", UsageError),
        (429, "{}", EngineError),
        (500, "{}", EngineError),
        (200, '{"choices": []}', EngineError),
        (200, "no json", EngineError),
    ],
)
async def test_failures_are_typed_and_never_retried(
    endpoint: Endpoint, status: int, answer: str, error: type[Exception]
) -> None:
    endpoint.status, endpoint.answer = status, answer
    engine = engine_for(endpoint)
    with pytest.raises(error) as caught:
        await engine.complete(REQUEST)
    await engine.close()
    assert type(caught.value) is error
    assert "secret" not in str(caught.value)
    assert len(endpoint.bodies) == 1


async def test_an_absent_endpoint_is_an_engine_error() -> None:
    engine = OpenAIEngine("http://127.0.0.1:9/v1", "m")
    with pytest.raises(EngineError, match="reached"):
        await engine.complete(REQUEST)
    await engine.close()


async def test_a_timeout_is_an_engine_error() -> None:
    def hang(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("", request=request)

    engine = OpenAIEngine("http://x/v1", "m", transport=httpx.MockTransport(hang))
    with pytest.raises(EngineError, match="in time"):
        await engine.complete(REQUEST)
    await engine.close()


async def test_a_scripted_engine_answers_by_its_policy() -> None:
    engine = ScriptedEngine(lambda request: {"content": f"you said {request.messages[-1]['content']}"})
    reply = await engine.complete(REQUEST)
    assert reply.message == {"role": "assistant", "content": "you said hi"}
    assert reply.finish_reason == "stop"
    assert engine.requests == [REQUEST]

    async def slow(_: ChatRequest) -> dict[str, Any]:
        return {"tool_calls": [{"id": "1"}]}

    assert (await ScriptedEngine(slow).complete(REQUEST)).finish_reason == "tool_calls"


async def test_a_scripted_token_engine_emits_its_completions(folder: ModelFolder) -> None:
    message = {"role": "assistant", "content": "if x <= 3: return"}
    engine = ScriptedTokenEngine(folder.renderer, [message, [9, 8, 7, 6, 5]])
    assert isinstance(engine, TokenEngine)
    chunks = [chunk async for chunk in engine.stream([1, 2], SamplingParams())]
    ids = [token for chunk in chunks for token in chunk.token_ids]
    assert folder.renderer.parse_completion(ids) == message
    assert [chunk.finish_reason for chunk in chunks[-2:]] == [None, "stop"]
    cut = [chunk async for chunk in engine.stream([1, 2], SamplingParams(max_tokens=3))]
    assert (cut[-1].token_ids, cut[-1].finish_reason) == ((9, 8, 7), "length")
    with pytest.raises(EngineError, match="no completion left"):
        [chunk async for chunk in engine.stream([1], SamplingParams())]
    assert engine.prompts == [(1, 2), (1, 2), (1,)]
