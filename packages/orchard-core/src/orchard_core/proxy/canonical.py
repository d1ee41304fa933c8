"""Messages in one canonical form, so that a harness's own re-serialisation does not look like an edit.

Two messages are the same when role, text and tool calls are: arguments compare as parsed JSON, empty content
compares equal in all its spellings, text parts compare equal to the string they spell. Left out on
purpose: tool-call ids (some harnesses rewrite them), reasoning (some drop it, some echo it), cache marks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from orchard_core.engine.protocol import Message, Tool

_TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


def plain_content(content: object) -> object:
    """Content with text parts joined by newlines; lists that hold other parts (images) stay lists."""
    if not isinstance(content, list):
        return content
    texts = [_part_text(part) for part in content]
    if all(text is not None for text in texts):
        return "\n".join(text for text in texts if text is not None)
    return content


def plain_message(message: Message) -> Message:
    """The message as renderers expect it: text content is a string."""
    content = message.get("content")
    plain = plain_content(content)
    return message if plain is content else {**message, "content": plain}


def chain(tools: Sequence[Tool], messages: Sequence[Message]) -> list[bytes]:
    """Digests of every prefix of a conversation: item k covers the tools and the first k messages."""
    digests = [_digest(b"", orjson.dumps(list(tools), option=orjson.OPT_SORT_KEYS))]
    for message in messages:
        digests.append(extend_chain(digests[-1], message))
    return digests


def extend_chain(digest: bytes, message: Message) -> bytes:
    """The digest of a conversation once `message` follows."""
    return _digest(digest, orjson.dumps(_canonical(message), option=orjson.OPT_SORT_KEYS))


def canonical_arguments(arguments: object) -> object:
    """Tool-call arguments as parsed JSON; text that is no JSON stays as it is."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments


def _canonical(message: Message) -> list[Any]:
    calls = message.get("tool_calls")
    listed = [_canonical_call(call) for call in calls] if isinstance(calls, list) else []
    return [message.get("role"), plain_content(message.get("content")) or "", listed]


def _canonical_call(call: object) -> list[Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return [None, call]
    return [function.get("name"), canonical_arguments(function.get("arguments"))]


def _part_text(part: object) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping) or part.get("type") not in _TEXT_PARTS:
        return None
    text = part.get("refusal") if part.get("type") == "refusal" else part.get("text")
    return text if isinstance(text, str) else ""


def _digest(previous: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(previous + data, digest_size=16).digest()
