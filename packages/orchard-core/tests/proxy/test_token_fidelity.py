"""Prompts extend what was sampled, whatever the harness does to the text on its way back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proxy_fakes import STOP, CharEngine, CharRenderer, Say, Teacher

from orchard_core.engine.errors import RenderError
from orchard_core.engine.protocol import ChatReply
from orchard_core.proxy.tokens import PromptIndex, TextStream
from orchard_core.trajectory import build_samples

USER = {"role": "user", "content": "hi"}
MORE = {"role": "user", "content": "more"}
# White space that the parser strips and a key order that no serialiser keeps: rendering anew can't give these ids.
CALL = '  ok  <tool_call>{"name":  "bash", "arguments": {"b": 1, "a": "é"}}</tool_call>'


def as_sent(message: dict[str, Any]) -> dict[str, Any]:
    return message


def compact_json(message: dict[str, Any]) -> dict[str, Any]:
    for call in message["tool_calls"]:
        arguments = json.loads(call["function"]["arguments"])
        call["function"]["arguments"] = json.dumps(arguments, separators=(",", ":"), sort_keys=True)
    return message


def other_ids(message: dict[str, Any]) -> dict[str, Any]:
    for call in message["tool_calls"]:
        call["id"] = call["id"].replace("_", "")
    return message


def parts(message: dict[str, Any]) -> dict[str, Any]:
    part = {"type": "text", "text": message["content"], "cache_control": {"type": "ephemeral"}}
    return {**message, "content": [part]}


def fewer_fields(message: dict[str, Any]) -> dict[str, Any]:
    for call in message["tool_calls"]:
        del call["id"]
    return {name: message[name] for name in ("role", "content", "tool_calls")}


def extra_fields(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "refusal": None, "annotations": [], "reasoning_content": "thought"}


@pytest.mark.parametrize("rewrite", [as_sent, compact_json, other_ids, parts, fewer_fields, extra_fields])
async def test_a_continued_call_extends_the_exact_ids(
    start, rewrite: Callable[[dict[str, Any]], dict[str, Any]]
):
    engine = CharEngine([Say(CALL), Say("done")])
    running = await start(engine)
    reply = await running.chat([USER])
    echoed = rewrite(reply.choices[0].message.model_dump(exclude_none=True))
    tool = {"role": "tool", "tool_call_id": "call_0_0", "content": "out"}
    await running.chat([USER, echoed, tool])
    first, second = running.session.seal().calls
    assert second.prompt_mode == "extended"
    before = [*first.prompt_ids, *first.completion_ids]
    assert second.prompt_ids.tolist() == before + engine.renderer.render_suffix([tool])
    report = build_samples([first, second])
    assert (len(report.samples), report.merges, report.dropped) == (1, 1, {})


@pytest.mark.parametrize(
    "spelling",
    [{"content": None}, {"content": ""}, {"content": []}, {"content": [{"type": "text", "text": ""}]}, {}],
)
async def test_all_spellings_of_empty_content_are_equal(start, spelling):
    engine = CharEngine([Say(CALL.strip().removeprefix("ok  ")), Say("done")])
    running = await start(engine)
    message = (await running.chat([USER])).choices[0].message.model_dump(exclude_none=True)
    message.pop("content", None)
    await running.chat([USER, {**message, **spelling}, {"role": "tool", "content": "out"}])
    assert [call.prompt_mode for call in running.session.seal().calls] == ["rendered", "extended"]


@pytest.mark.parametrize(
    "history",
    [
        [{"role": "user", "content": "hi!"}, {"role": "assistant", "content": "yes"}, MORE],
        [USER, {"role": "assistant", "content": "no"}, MORE],
        [USER, {"role": "assistant", "content": "yes"}],
        [USER, {"role": "assistant", "content": "yes"}, MORE, {"role": "assistant", "content": "prefill"}],
        [{"role": "system", "content": "s"}, USER, {"role": "assistant", "content": "yes"}, MORE],
    ],
)
async def test_a_rewritten_history_is_rendered_anew(start, history):
    engine = CharEngine([Say("yes"), Say("x")])
    running = await start(engine)
    await running.chat([USER])
    await running.chat(history)
    _, second = running.session.seal().calls
    assert second.prompt_mode == "rendered"
    assert second.prompt_ids.tolist() == engine.renderer.render(history, [])


async def test_other_tools_are_another_conversation(start):
    running = await start(CharEngine([Say("yes"), Say("x")]))
    await running.chat([USER])
    tool = {"type": "function", "function": {"name": "new", "parameters": {}}}
    await running.chat([USER, {"role": "assistant", "content": "yes"}, MORE], tools=[tool])
    assert running.session.seal().calls[1].prompt_mode == "rendered"


async def test_a_completion_cut_by_length_is_not_extended(start):
    running = await start(CharEngine([Say("yes and no"), Say("x")]))
    await running.chat([USER], max_tokens=3)
    await running.chat([USER, {"role": "assistant", "content": "yes"}, MORE])
    assert running.session.seal().calls[1].prompt_mode == "rendered"


async def test_a_stop_token_that_the_engine_left_out_is_put_back_into_the_prompt(start):
    engine = CharEngine([Say("yes", finish="tool_calls"), Say("x")])
    running = await start(engine)
    await running.chat([USER])
    await running.chat([USER, {"role": "assistant", "content": "yes"}, MORE])
    first, second = running.session.seal().calls
    assert STOP not in first.completion_ids
    ends = [*first.prompt_ids, *first.completion_ids, STOP]
    assert second.prompt_ids.tolist() == ends + engine.renderer.render_suffix([MORE])
    assert len(build_samples([first, second]).samples) == 1


async def test_interleaved_sub_agents_each_extend_their_own_thread(start):
    engine = CharEngine(lambda number: Say(f"reply {number}"))
    running = await start(engine)
    threads = {name: [{"role": "user", "content": name}] for name in "ab"}
    for name in "abbaab":
        reply = await running.chat(threads[name])
        threads[name] += [reply.choices[0].message.model_dump(exclude_none=True), MORE]
    calls = running.session.seal().calls
    assert [call.prompt_mode for call in calls] == ["rendered"] * 2 + ["extended"] * 4
    report = build_samples(calls)
    assert (len(report.samples), report.merges, report.dropped) == (2, 4, {})


async def test_the_work_of_an_episode_grows_with_new_messages_only(start):
    engine = CharEngine(lambda number: Say(f"reply {number}"))
    running = await start(engine)
    history = [USER]
    for _ in range(30):
        reply = await running.chat(history)
        history = [*history, reply.choices[0].message.model_dump(exclude_none=True), MORE]
    assert engine.renderer.rendered_messages == 30


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_the_longest_earlier_call_wins_and_every_prompt_extends_or_renders(data):
    """Conversations over a tiny alphabet branch anywhere; the index is compared with a plain search."""
    renderer = CharRenderer()
    index = PromptIndex(renderer)
    history = st.lists(st.tuples(st.sampled_from("xy"), st.sampled_from("uv")), max_size=3)
    known: list[tuple[list[dict[str, str]], list[int]]] = []
    for _ in range(data.draw(st.integers(1, 8))):
        messages = []
        for user, assistant in data.draw(history):
            messages += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
        messages += [
            {"role": "user", "content": one} for one in data.draw(st.lists(st.sampled_from("xy"), min_size=1))
        ]
        prompt = index.build(messages, [])
        fitting = [
            (len(conversation), ids)
            for conversation, ids in known
            if messages[: len(conversation)] == conversation
            and all(new["role"] != "assistant" for new in messages[len(conversation) :])
        ]
        if fitting:
            longest, ids = max(fitting, key=lambda fit: fit[0])
            assert prompt.mode == "extended"
            assert prompt.ids.tolist() == ids + renderer.render_suffix(messages[longest:])
        else:
            assert (prompt.mode, prompt.ids.tolist()) == ("rendered", renderer.render(messages, []))
        reply = {"role": "assistant", "content": data.draw(st.sampled_from("uv"))}
        completion = [*renderer.encode(f" {reply['content']} "), STOP]
        index.add(prompt, reply, completion, complete=True)
        known = [one for one in known if one[0] != [*messages, reply]]
        known.append(([*messages, reply], prompt.ids.tolist() + completion))


class ByteRenderer(CharRenderer):
    """UTF-8 bytes as tokens, so that one character needs several."""

    def encode(self, text):
        return [1000 + byte for byte in text.encode()]

    def decode(self, token_ids):
        return bytes(token - 1000 for token in token_ids).decode("utf-8", "replace")


@given(st.text(alphabet="ab \n<[{é€😀\t", max_size=30), st.lists(st.integers(1, 5)))
def test_streamed_text_always_adds_up_to_the_parsed_content(text, sizes):
    renderer = ByteRenderer()
    ids = renderer.encode(text)
    stream = TextStream(renderer)
    content = renderer.parse_completion(ids)["content"]
    sent = ""
    for size in [*sizes, len(ids) or 1]:
        sent += stream.feed(ids[:size])
        ids = ids[size:]
        assert content.startswith(sent)
    assert sent + stream.rest(content) == content


async def test_a_teachers_text_is_rendered_into_ids_without_inventing_logprobs(start):
    def say(text):
        return ChatReply({"role": "assistant", "content": text}, "stop")

    renderer = CharRenderer()
    running = await start(Teacher([say("one"), say("two")]), renderer=renderer)
    await running.chat([USER])
    await running.chat([USER, {"role": "assistant", "content": "one"}, MORE])
    first, second = running.session.seal().calls
    assert (first.token_source, first.prompt_mode, second.prompt_mode) == ("rendered", "rendered", "extended")
    assert first.logprobs is second.logprobs is None
    assert first.completion_ids.tolist() == [*map(ord, "one"), STOP]
    (sample,) = build_samples([first, second]).samples
    assert not sample.has_logprobs


async def test_ids_that_a_message_engine_reports_are_facts(start):
    reply = ChatReply({"content": "one"}, "stop", (1, 2), (3, 4), (-0.5, -0.25), weight_version=9)
    crooked = ChatReply({"content": "one"}, "stop", (1, 2), (3, 4), (-0.5,))
    running = await start(Teacher([reply, crooked]), renderer=CharRenderer())
    await running.chat([USER])
    await running.chat([MORE])
    first, second = running.session.seal().calls
    assert (first.token_source, first.prompt_mode, first.weight_version) == ("engine", "reported", 9)
    assert (first.prompt_ids.tolist(), first.completion_ids.tolist()) == ([1, 2], [3, 4])
    assert first.logprobs is not None
    assert first.logprobs.tolist() == [-0.5, -0.25]
    assert second.logprobs is None


class Stubborn(CharRenderer):
    """A renderer whose template can't continue a conversation, or can't show one at all."""

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.whole = whole

    def render(self, messages, tools):
        if not self.whole:
            raise RenderError("this template knows no such role")
        return super().render(messages, tools)

    def render_suffix(self, new_messages):
        raise RenderError("this template drops earlier turns")


async def test_a_template_that_cannot_continue_is_rendered_whole(start):
    running = await start(CharEngine([Say("yes"), Say("x")], renderer=Stubborn(whole=True)))
    await running.chat([USER])
    await running.chat([USER, {"role": "assistant", "content": "yes"}, MORE])
    assert [call.prompt_mode for call in running.session.seal().calls] == ["rendered", "rendered"]


async def test_a_conversation_that_no_template_can_show_is_refused_once(start):
    running = await start(CharEngine([], renderer=Stubborn(whole=False)), retries=2)
    with pytest.raises(openai.BadRequestError, match="no such role"):
        await running.chat([USER])
    sealed = running.session.seal()
    assert (len(sealed.dropped), sealed.incomplete) == (1, "this template knows no such role")


async def test_a_teachers_reply_that_cannot_be_rendered_is_kept_without_ids(start):
    teacher = Teacher([ChatReply({"role": "assistant", "content": "one"}, "stop", completion_tokens=3)])
    running = await start(teacher, renderer=Stubborn(whole=False))
    assert (await running.chat([USER])).choices[0].message.content == "one"
    (call,) = running.session.seal().calls
    assert (call.token_source, len(call.completion_ids)) == ("none", 0)
    assert build_samples([call]).dropped == {"no_token_ids": 3}
