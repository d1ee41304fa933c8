"""OpenAI chat completions as pure translation: bodies to requests, replies to JSON and stream chunks.

Unknown fields never fail a request: some clients answer a 400 by changing the prompt mid-rollout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from orchard_core.engine.protocol import ChatRequest, Message
from orchard_core.proxy.canonical import plain_message
from orchard_core.proxy.errors import CallRefused

DONE = b"data: [DONE]\n\n"
_KNOWN = frozenset(
    {"model", "messages", "tools", "stream", "stream_options", "max_tokens", "max_completion_tokens"}
)


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A parsed request body. `max_tokens` is the harness's own wish; the policy caps it."""

    request: ChatRequest
    max_tokens: int | None
    stream: bool
    include_usage: bool


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What every JSON object of one reply repeats. `created` is in Unix seconds."""

    id: str
    created: int
    model: str


def parse_request(body: object, session: str = "") -> ChatCall:
    """Read a request body. Raises CallRefused (malformed_request)."""
    if not isinstance(body, dict):
        raise CallRefused("malformed_request", "the body must be a JSON object")
    options = body.get("stream_options")
    request = ChatRequest(
        model=str(body.get("model") or ""),
        messages=[plain_message(message) for message in _messages(body.get("messages"))],
        tools=_tools(body.get("tools")),
        session=session,
        extra={key: value for key, value in body.items() if key not in _KNOWN},
    )
    return ChatCall(
        request=request,
        max_tokens=_max_tokens(body),
        stream=body.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def reply_message(message: Message, call_index: int) -> dict[str, Any]:
    """An engine's message as an OpenAI assistant message: content null only beside tool calls, ids filled in."""
    calls = [_tool_call(call, call_index, at) for at, call in enumerate(message.get("tool_calls") or [])]
    content = message.get("content") or ""
    reply: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
    if calls:
        reply["tool_calls"] = calls
    if message.get("reasoning_content"):
        reply["reasoning_content"] = message["reasoning_content"]
    return reply


def completion(
    head: ReplyHead, message: Message, finish_reason: str, usage: Mapping[str, int]
) -> dict[str, Any]:
    """The JSON of a whole reply."""
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
    return _object("chat.completion", head, [choice], usage)


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def first_chunk(head: ReplyHead) -> bytes:
    """The stream event that opens the assistant's turn."""
    return _chunk(head, {"role": "assistant", "content": ""})


def content_chunk(head: ReplyHead, text: str) -> bytes:
    return _chunk(head, {"content": text})


def last_chunks(head: ReplyHead, reply: Mapping[str, Any], rest: str, include_usage: bool) -> Iterator[bytes]:
    """The events that end a stream: text not yet sent, tool calls, finish reason, usage, [DONE]."""
    choice = reply["choices"][0]
    message = choice["message"]
    if message.get("reasoning_content"):
        yield _chunk(head, {"reasoning_content": message["reasoning_content"]})
    if rest:
        yield content_chunk(head, rest)
    for at, call in enumerate(message.get("tool_calls") or []):
        yield _chunk(head, {"tool_calls": [{"index": at, **call}]})
    yield _chunk(head, {}, choice["finish_reason"])
    if include_usage:
        yield _event(_object("chat.completion.chunk", head, [], reply["usage"]))
    yield DONE


def models(model: str) -> dict[str, Any]:
    entry = {"id": model, "object": "model", "created": 0, "owned_by": "orchard"}
    return {"object": "list", "data": [entry]}


def error(refusal: CallRefused) -> dict[str, Any]:
    """A refusal in OpenAI's shape."""
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    return {"error": {"message": str(refusal), "type": kind, "param": None, "code": refusal.code}}


def error_event(refusal: CallRefused) -> bytes:
    """A refusal inside a stream that has begun."""
    return _event(error(refusal))


def _messages(value: object) -> Sequence[Message]:
    if not isinstance(value, list) or not value:
        raise CallRefused("malformed_request", "'messages' must be a list with at least one message")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise CallRefused("malformed_request", "each of 'messages' must be an object with a 'role'")
        if not isinstance(message.get("content"), str | list | None):
            raise CallRefused(
                "malformed_request", "a message's 'content' must be text, a list of parts or null"
            )
    return value


def _tools(value: object) -> Sequence[Mapping[str, Any]]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise CallRefused("malformed_request", "'tools' must be a list")
    # Hosted tools (web search and the like) have no meaning here; they are left out like unknown fields.
    return [tool for tool in value if isinstance(tool, dict) and isinstance(tool.get("function"), dict)]


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    wishes = [body.get("max_completion_tokens"), body.get("max_tokens")]
    limits = [wish for wish in wishes if type(wish) is int and wish > 0]
    return min(limits) if limits else None


def _tool_call(call: Mapping[str, Any], call_index: int, at: int) -> dict[str, Any]:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = orjson.dumps(arguments if arguments is not None else {}).decode()
    # Ids count calls instead of being random: they may enter later prompts, and rollouts are reproducible.
    return {
        "id": call.get("id") or f"call_{call_index}_{at}",
        "type": "function",
        "function": {"name": str(function.get("name") or ""), "arguments": arguments},
    }


def _chunk(head: ReplyHead, delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return _event(_object("chat.completion.chunk", head, [choice], None))


def _object(
    kind: str, head: ReplyHead, choices: list[dict[str, Any]], counted: Mapping[str, int] | None
) -> dict[str, Any]:
    return {
        "id": head.id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "choices": choices,
        "usage": counted,
    }


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"
