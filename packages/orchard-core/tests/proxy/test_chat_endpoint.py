"""The chat endpoint as OpenAI's own client sees it, and what it records."""

from __future__ import annotations

import asyncio
import json

import httpx
import numpy as np
import openai
import pytest
from proxy_fakes import STOP, CharEngine, Say, Teacher

from orchard_core.engine.protocol import ChatReply, SamplingParams, TokenChunk
from orchard_core.errors import UsageError
from orchard_core.proxy import RecordingProxy, SessionPolicy, derive_seed

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
CALL = 'ok <tool_call>{"name": "bash", "arguments": {"b": 1, "a": "x"}}</tool_call>'


async def test_a_reply_reaches_the_client_and_is_recorded_token_for_token(start):
    engine = CharEngine([Say("hello")])
    running = await start(engine)
    reply = await running.chat([USER])
    assert reply.choices[0].message.content == "hello"
    assert reply.choices[0].finish_reason == "stop"
    (call,) = running.session.seal().calls
    assert call.prompt_ids.tolist() == engine.prompts[0]
    assert call.completion_ids.tolist() == [*map(ord, "hello"), STOP]
    assert call.logprobs is not None
    np.testing.assert_array_equal(call.logprobs, np.float32([-0.5 - at / 64 for at in range(6)]))
    assert (call.token_source, call.prompt_mode, call.weight_version) == ("engine", "rendered", 7)
    assert reply.usage.prompt_tokens == len(call.prompt_ids)
    assert reply.usage.completion_tokens == 6
    assert call.started_at <= call.first_token_at <= call.finished_at
    assert call.response["id"] == reply.id


async def test_a_streamed_reply_equals_the_whole_one(start):
    text = "It is 3 < 4, and ünïcode\n\n ends"
    running = await start(CharEngine([Say(text), Say(text)]))
    whole = await running.chat([USER])
    stream = await running.chat([USER], stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == whole.choices[0].message.content == text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage == whole.usage
    first, second = running.session.seal().calls
    assert first.completion_ids.tolist() == second.completion_ids.tolist()


async def test_text_is_streamed_before_the_completion_is_whole(start):
    gate = asyncio.Event()
    running = await start(CharEngine([Say("first half second half", gate=gate)]))
    stream = await running.chat([USER], stream=True)
    seen = ""
    async for chunk in stream:
        seen += chunk.choices[0].delta.content or ""
        if seen == "first half":
            assert running.session.calls == 0
            gate.set()
    assert seen == "first half second half"


async def test_the_end_of_a_stream_is_sent_only_once_the_call_is_recorded(start):
    running = await start(CharEngine([Say("abc")]))
    recorded = []
    async for chunk in await running.chat([USER], stream=True):
        if chunk.choices[0].finish_reason:
            recorded.append(running.session.calls)
    assert recorded == [1]


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_calls_are_parsed(start, stream):
    running = await start(CharEngine([Say(CALL)]))
    if stream:
        chunks = [chunk async for chunk in await running.chat([USER], tools=[TOOL], stream=True)]
        deltas = [chunk.choices[0].delta for chunk in chunks]
        assert "".join(delta.content or "" for delta in deltas) == "ok"
        (call,) = [call for delta in deltas for call in delta.tool_calls or []]
        finish = chunks[-1].choices[0].finish_reason
    else:
        choice = (await running.chat([USER], tools=[TOOL])).choices[0]
        assert choice.message.content == "ok"
        (call,) = choice.message.tool_calls
        finish = choice.finish_reason
    assert finish == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)) == ("bash", {"a": "x", "b": 1})
    assert call.id == "call_0_0"


async def test_a_malformed_tool_call_stays_text(start):
    text = "<tool_call>{oops</tool_call>"
    running = await start(CharEngine([Say(text)]))
    choice = (await running.chat([USER], tools=[TOOL])).choices[0]
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (text, None, "stop")


async def test_the_policy_decides_how_to_sample_and_the_harness_may_only_ask_for_less(start):
    engine = CharEngine([Say("x")] * 3)
    policy = SamplingParams(temperature=0.7, top_p=0.9, top_k=5, max_tokens=50, seed=3)
    running = await start(engine, sampling=policy)
    await running.chat([USER], temperature=0.0, top_p=0.1, seed=99, max_tokens=10)
    await running.chat([USER], max_completion_tokens=131072)
    await running.chat([USER])
    assert [p.max_tokens for p in engine.params] == [10, 50, 50]
    assert {(p.temperature, p.top_p, p.top_k) for p in engine.params} == {(0.7, 0.9, 5)}
    assert [p.seed for p in engine.params] == [derive_seed(3, at) for at in range(3)]
    assert len({p.seed for p in engine.params}) == 3
    assert engine.params[0].stop_token_ids == (STOP,)


def test_seeds_are_stable_across_processes_and_versions():
    assert derive_seed(3, 0) == 3204756597639620455
    assert derive_seed(None, 5) is None


async def test_a_budget_of_calls_ends_the_session_cleanly(start):
    running = await start(CharEngine([Say("a"), Say("b")]), retries=3, max_calls=2)
    await running.chat([USER])
    assert running.session.ended_by is None
    await running.chat([USER])
    with pytest.raises(openai.PermissionDeniedError) as caught:
        await running.chat([USER])
    assert caught.value.code == "budget_exceeded"
    sealed = running.session.seal()
    assert (len(sealed.calls), sealed.incomplete, sealed.ended_by) == (2, None, "max_calls")


async def test_a_budget_of_tokens_is_never_exceeded(start):
    running = await start(CharEngine(lambda _: Say("abcdefghij")), max_total_tokens=15)
    await running.chat([USER])
    cut = await running.chat([USER])
    assert cut.choices[0].finish_reason == "length"
    with pytest.raises(openai.PermissionDeniedError):
        await running.chat([USER])
    sealed = running.session.seal()
    assert sum(len(call.completion_ids) for call in sealed.calls) == 15
    assert sealed.ended_by == "max_total_tokens"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_context_is_a_normal_finish(start, stream):
    running = await start(CharEngine([], max_context=8))
    if stream:
        chunks = [chunk async for chunk in await running.chat([USER], stream=True)]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ""
        assert chunks[-1].choices[0].finish_reason == "length"
    else:
        choice = (await running.chat([USER])).choices[0]
        assert (choice.message.content, choice.finish_reason) == ("", "length")
    sealed = running.session.seal()
    assert len(sealed.calls[0].completion_ids) == 0
    assert (sealed.incomplete, sealed.ended_by) == (None, "context_overflow")


async def test_max_tokens_are_cut_to_the_room_in_the_context(start):
    engine = CharEngine([Say("abcdef")], max_context=30)
    running = await start(engine)
    reply = await running.chat([USER])
    assert engine.params[0].max_tokens == 30 - len(engine.prompts[0])
    assert reply.choices[0].finish_reason == "stop"


async def test_unknown_fields_and_content_shapes_are_tolerated(start):
    engine = CharEngine([Say("a"), Say("b")])
    running = await start(engine)
    parts = [{"type": "text", "text": "h", "cache_control": {}}, {"type": "text", "text": "i"}]
    body = {
        "messages": [{"role": "assistant", "content": None}, {"role": "user", "content": parts}],
        "reasoning_effort": None,
        "made_up": {"x": [1]},
        "stream_options": None,
        "tools": [{"type": "web_search"}],
    }
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {running.session.secret}"}) as client:
        reply = await client.post(f"{running.url}/chat/completions", json=body)
        surrogate = await client.post(
            f"{running.url}/chat/completions", content=b'{"messages":[{"role":"user","content":"\\ud800"}]}'
        )
    assert (reply.status_code, surrogate.status_code) == (200, 200)
    assert engine.renderer.decode(engine.prompts[0]).endswith("[user]h\ni\n[assistant]")


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"messages": []}',
        b'{"messages": [1]}',
        b'{"messages": [{"role": "user", "content": 5}]}',
    ],
)
async def test_a_malformed_body_gets_400_in_openais_shape(start, content):
    running = await start(CharEngine([]))
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {running.session.secret}"}) as client:
        reply = await client.post(f"{running.url}/chat/completions", content=content)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "malformed_request"
    assert running.session.seal().dropped == ()


async def test_secrets_and_routes(start):
    running = await start(CharEngine([Say("x")]), model="shown")
    other = running.proxy.open_session("roll-2", SessionPolicy())
    base = running.url.removesuffix("/r/roll-1/v1")
    good = {"Authorization": f"Bearer {running.session.secret}"}
    async with httpx.AsyncClient() as client:
        url = f"{running.url}/chat/completions"
        assert (await client.post(url, json={"messages": [USER]})).status_code == 401
        stolen = {"Authorization": f"Bearer {other.secret}"}
        assert (await client.post(url, json={"messages": [USER]}, headers=stolen)).status_code == 401
        assert (await client.get(f"{base}/r/nobody/v1/models", headers=good)).status_code == 404
        missing = await client.post(f"{running.url}/embeddings", json={}, headers=good)
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_route")
        models = await client.get(f"{running.url}/models", headers=good)
    assert [model["id"] for model in models.json()["data"]] == ["shown"]


async def test_a_body_of_many_megabytes_passes_and_one_beyond_the_limit_is_refused(start, monkeypatch):
    engine = CharEngine([Say("x")], max_context=10**8)
    running = await start(engine)
    big = "y" * (5 * 2**20)
    await running.chat([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": big}}]}])
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {running.session.secret}"}) as client:
        reply = await client.post(f"{running.url}/chat/completions", content=b" " * (64 * 2**20 + 1))
    assert reply.status_code == 413
    assert reply.json()["error"]["code"] == "body_too_large"


async def test_session_ids_are_checked(start):
    running = await start(CharEngine([]))
    with pytest.raises(UsageError, match="open session"):
        running.proxy.open_session("roll-1", SessionPolicy())
    with pytest.raises(UsageError, match="letters"):
        running.proxy.open_session("a/b", SessionPolicy())
    running.session.seal()
    assert running.proxy.open_session("roll-1", SessionPolicy()).secret != running.session.secret


async def test_an_address_in_use_is_one_clear_error(start):
    running = await start(CharEngine([]))
    second = RecordingProxy(CharEngine([]), port=running.proxy.address[1])
    with pytest.raises(Exception, match="choose another address"):
        await second.start()
    with pytest.raises(UsageError, match="not running"):
        _ = second.address


async def test_a_sessions_own_engine_serves_it(start):
    running = await start(CharEngine([]))
    teacher = Teacher([ChatReply({"role": "assistant", "content": "taught"}, "stop", completion_tokens=4)])
    session = running.proxy.open_session("t", SessionPolicy(), engine=teacher)
    base = running.url.replace("roll-1", "t")
    async with openai.AsyncOpenAI(base_url=base, api_key=session.secret) as client:
        reply = await client.chat.completions.create(model="m", messages=[USER])
    assert reply.choices[0].message.content == "taught"
    (call,) = session.seal().calls
    assert (call.model, call.token_source, call.prompt_mode, call.logprobs) == (
        "teacher",
        "none",
        "none",
        None,
    )
    assert call.response["usage"]["completion_tokens"] == 4
    assert teacher.requests[0].session == "t"


async def test_a_call_that_spans_a_weight_update_counts_as_of_the_older_weights(start):
    class Updated(CharEngine):
        async def stream(self, prompt_ids, params):
            for version, letter in ((4, "a"), (5, "b"), (5, "c")):
                yield TokenChunk((ord(letter),), (-1.0,), None, version)
            yield TokenChunk((STOP,), (-1.0,), "stop", 5)

    running = await start(Updated([]))
    await running.chat([USER])
    assert running.session.seal().calls[0].weight_version == 4


async def test_an_engine_whose_ids_and_logprobs_disagree_is_refused(start):
    class Crooked(CharEngine):
        async def stream(self, prompt_ids, params):
            yield TokenChunk((ord("a"), STOP), (-1.0,), "stop", 5)

    running = await start(Crooked([]))
    with pytest.raises(openai.InternalServerError, match="different number"):
        await running.chat([USER])
    assert running.session.seal().incomplete is not None
