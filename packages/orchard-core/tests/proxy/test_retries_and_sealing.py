"""Nothing is sampled twice for one call, nothing is recorded that no client received, nothing comes after the seal."""

from __future__ import annotations

import asyncio
import json

import httpx
import openai
import pytest
from proxy_fakes import CharEngine, Say

from orchard_core.engine.errors import ContextOverflowError, EngineError
from orchard_core.proxy import SessionPolicy
from orchard_core.proxy.dialects.chat import parse_request

USER = {"role": "user", "content": "hi"}


async def until(condition):
    """Wait for what other tasks bring about."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the conditions are an engine's counters
            await asyncio.sleep(0.002)


def raw(running, **headers):
    return httpx.AsyncClient(
        headers={"Authorization": f"Bearer {running.session.secret}", **headers},
        base_url=f"{running.url}/",
        timeout=20,
    )


async def test_a_resend_in_flight_joins_the_first(start):
    gate = asyncio.Event()
    engine = CharEngine([Say("slow", gate=gate)])
    running = await start(engine)
    sends = [asyncio.create_task(running.chat([USER])) for _ in range(3)]
    await until(lambda: engine.running == 1)
    await asyncio.sleep(0.05)
    gate.set()
    replies = await asyncio.gather(*sends)
    assert len({reply.id for reply in replies}) == 1
    assert len(engine.prompts) == len(running.session.seal().calls) == 1


async def test_one_follower_leaving_does_not_end_the_others_call(start):
    gate = asyncio.Event()
    engine = CharEngine([Say("slow", gate=gate)])
    running = await start(engine)
    stays = asyncio.create_task(running.chat([USER]))
    await until(lambda: engine.running == 1)
    leaves = asyncio.create_task(running.chat([USER]))
    await asyncio.sleep(0.05)
    leaves.cancel()
    await asyncio.sleep(0.05)
    gate.set()
    assert (await stays).choices[0].message.content == "slow"
    assert running.session.seal().dropped == ()


@pytest.mark.parametrize("mark", [{"x-stainless-retry-count": "1"}, {"Idempotency-Key": "k"}])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_marked_resend_after_the_end_replays_the_recorded_reply(start, mark, stream):
    engine = CharEngine([Say("first"), Say("second")])
    running = await start(engine)
    body = {"messages": [USER], "stream": stream}
    first_mark = {} if "x-stainless-retry-count" in mark else mark
    async with raw(running) as client:
        first = await client.post("chat/completions", json=body, headers=first_mark)
        again = await client.post("chat/completions", json=body, headers=mark)

        def text(reply):
            if not stream:
                return reply.json()["choices"][0]["message"]["content"]
            events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
            return "".join(event["choices"][0]["delta"].get("content") or "" for event in events)

        assert text(first) == text(again) == "first"
        other = await client.post("chat/completions", json=body)
    assert text(other) == "second"
    assert len(running.session.seal().calls) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_aborts_the_generation_and_leaves_no_call(start, stream):
    engine = CharEngine([Say("never whole", gate=asyncio.Event()), Say("again")])
    running = await start(engine)

    async def send():
        reply = await running.chat([USER], stream=stream)
        if stream:
            async for _ in reply:
                pass

    task = asyncio.create_task(send())
    await until(lambda: engine.running == 1)
    await asyncio.sleep(0.02)
    task.cancel()
    await until(lambda: engine.running == 0)
    assert engine.aborted == 1
    await running.chat([USER])
    sealed = running.session.seal()
    assert [call.response["choices"][0]["message"]["content"] for call in sealed.calls] == ["again"]
    assert sealed.incomplete is None
    assert "hung up" in sealed.dropped[0].reason
    assert engine.params[0].seed == engine.params[1].seed


async def test_an_engine_failure_is_retried_by_the_client_with_the_same_seed(start):
    engine = CharEngine([Say("abc", error=EngineError("out of memory")), Say("fine")])
    running = await start(engine, retries=1)
    assert (await running.chat([USER])).choices[0].message.content == "fine"
    sealed = running.session.seal()
    assert (len(sealed.calls), sealed.incomplete) == (1, None)
    assert sealed.dropped[0].reason == "out of memory"
    assert engine.params[0].seed == engine.params[1].seed


@pytest.mark.parametrize("error", [EngineError("out of memory"), RuntimeError("a bug")])
async def test_a_lasting_engine_failure_makes_the_record_incomplete(start, error):
    running = await start(CharEngine(lambda _: Say("abc", error=error)))
    with pytest.raises(openai.InternalServerError):
        await running.chat([USER])
    sealed = running.session.seal()
    assert sealed.calls == ()
    assert str(error) in (sealed.incomplete or "")


async def test_a_failure_inside_a_stream_is_an_error_event(start):
    running = await start(CharEngine([Say("abcdef", error=EngineError("gone"), fail_after=3)]))
    seen = []

    async def read():
        async for chunk in await running.chat([USER], stream=True):
            seen.append(chunk.choices[0].delta.content or "")

    with pytest.raises(openai.APIError, match="gone"):
        await read()
    assert "".join(seen) == "abc"
    assert running.session.seal().incomplete == "gone"


async def test_an_engine_that_aborts_is_a_failure_not_a_call(start):
    running = await start(CharEngine([Say("abc", finish="abort")]))
    with pytest.raises(openai.InternalServerError):
        await running.chat([USER])
    assert running.session.seal().calls == ()


async def test_an_engine_that_finds_the_context_full_ends_normally(start):
    running = await start(CharEngine([Say("a", error=ContextOverflowError("full"))]))
    assert (await running.chat([USER])).choices[0].finish_reason == "length"
    assert running.session.ended_by == "context_overflow"


async def test_sealing_freezes_the_record_and_refuses_later_calls(start):
    running = await start(CharEngine(lambda _: Say("a")), retries=2)
    await running.chat([USER])
    sealed = running.session.seal()
    assert running.session.seal() is sealed
    with pytest.raises(openai.PermissionDeniedError) as caught:
        await running.chat([USER])
    assert caught.value.code == "session_sealed"
    assert (len(sealed.calls), sealed.incomplete, len(running.session.seal().calls)) == (1, None, 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_sealing_aborts_calls_in_flight_and_says_that_the_record_is_incomplete(start, stream):
    engine = CharEngine([Say("done"), Say("never whole", gate=asyncio.Event())])
    running = await start(engine)
    await running.chat([USER])

    async def send():
        reply = await running.chat([{"role": "user", "content": "two"}], stream=stream)
        if stream:
            async for _ in reply:
                pass

    task = asyncio.create_task(send())
    await until(lambda: engine.running == 1)
    await asyncio.sleep(0.02)
    sealed = running.session.seal()
    assert len(sealed.calls) == 1
    assert sealed.incomplete == "1 call(s) in flight were aborted"
    with pytest.raises(openai.APIError, match="sealed"):
        await task
    await until(lambda: engine.running == 0)


async def test_concurrent_calls_are_numbered_in_order_of_their_start_without_gaps(start):
    slow, never = asyncio.Event(), asyncio.Event()
    engine = CharEngine([Say("slow", gate=slow), Say("lost", gate=never), Say("quick")])
    running = await start(engine)
    tasks = []
    for at, name in enumerate("abc"):
        tasks.append(asyncio.create_task(running.chat([{"role": "user", "content": name}])))
        await until(lambda at=at: len(engine.prompts) == at + 1)
    await tasks[2]
    tasks[1].cancel()
    await until(lambda: engine.running == 1)
    slow.set()
    await tasks[0]
    calls = running.session.seal().calls
    assert [(call.index, call.response["choices"][0]["message"]["content"]) for call in calls] == [
        (0, "slow"),
        (1, "quick"),
    ]
    assert len({call.id for call in calls}) == 2


async def test_closing_the_proxy_seals_what_is_open(start):
    engine = CharEngine([Say("never", gate=asyncio.Event())])
    running = await start(engine)
    other = running.proxy.open_session("roll-2", SessionPolicy())
    task = asyncio.create_task(running.chat([USER]))
    await until(lambda: engine.running == 1)
    await running.proxy.close()
    with pytest.raises(openai.APIError):
        await task
    assert running.session.seal().incomplete is not None
    assert other.seal().incomplete is None
    assert engine.running == 0


async def test_a_budget_stays_the_reason_of_the_end_when_a_call_in_flight_ends_later(start):
    gate = asyncio.Event()
    engine = CharEngine([Say("slow", gate=gate)])
    running = await start(engine, max_calls=1)
    slow = asyncio.create_task(running.chat([USER]))
    await until(lambda: engine.running == 1)
    with pytest.raises(openai.PermissionDeniedError):
        await running.chat([{"role": "user", "content": "two"}])
    gate.set()
    await slow
    assert running.session.seal().ended_by == "max_calls"


async def test_a_reply_that_never_reached_the_client_is_replayed_without_a_mark(start):
    engine = CharEngine([Say("one"), Say("two")])
    session = (await start(engine)).session
    body = {"messages": [USER]}
    first = session.admit(parse_request(body), body, b"digest", retry=False)
    await first.result()
    assert session.admit(parse_request(body), body, b"digest", retry=False) is first
    first.delivered = True
    second = session.admit(parse_request(body), body, b"digest", retry=False)
    assert second is not first
    await second.result()
    assert [call.index for call in session.seal().calls] == [0, 1]
