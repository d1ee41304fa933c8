"""Tool calls in the `<tool_call>` JSON form of the Qwen family: from text to OpenAI messages and back."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

_BLOCK = re.compile(r"\n?<tool_call>(.*?)</tool_call>", re.DOTALL)


def parse_message(text: str, token_ids: Sequence[int]) -> dict[str, Any]:
    """An assistant's text as a message; `token_ids` only seed the calls' ids.

    Blocks that do not hold `{"name": str, "arguments": object}` stay in the content as they are.
    """
    calls: list[dict[str, Any]] = []

    def take(match: re.Match[str]) -> str:
        function = _parse_call(match.group(1))
        if function is None:
            return match.group(0)
        calls.append({"id": _call_id(token_ids, len(calls)), "type": "function", "function": function})
        return ""

    content = _BLOCK.sub(take, text)
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = calls
    return message


def canonical_arguments(arguments: Any) -> str:
    """Arguments (a JSON string or an object) in one spelling, so that two spellings compare equal.

    A string that is no JSON object is returned unchanged.
    """
    value = decode_arguments(arguments)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def decode_arguments(arguments: Any) -> Any:
    """The object in a JSON string; a string that holds no object is returned unchanged."""
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def template_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as chat templates expect it: text content, and arguments as objects."""
    plain = dict(message)
    plain["content"] = _text(message.get("content"))
    if message.get("tool_calls"):
        plain["tool_calls"] = [_template_call(call) for call in message["tool_calls"]]
    else:
        plain.pop("tool_calls", None)
    return plain


def _template_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    function["arguments"] = decode_arguments(function.get("arguments") or {})
    return {**call, "function": function}


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _parse_call(body: str) -> dict[str, str] | None:
    try:
        call = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = decode_arguments(call.get("arguments", {}))
    if not isinstance(arguments, dict):
        return None
    return {"name": call["name"], "arguments": json.dumps(arguments, ensure_ascii=False)}


def _call_id(token_ids: Sequence[int], index: int) -> str:
    digest = hashlib.blake2b(repr((index, *token_ids)).encode(), digest_size=9)
    return f"call_{digest.hexdigest()}"
