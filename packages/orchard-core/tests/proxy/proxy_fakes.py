"""Tiny engines for the proxy's tests: one character is one token, and what is sampled is scripted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchard_core.engine.protocol import (
    ChatReply,
    ChatRequest,
    FinishReason,
    Message,
    SamplingParams,
    TokenChunk,
    Tool,
)

STOP = 3
OPEN_TOOL, CLOSE_TOOL = "<tool_call>", "</tool_call>"


class CharRenderer:
    """Characters as tokens, `[role]text` as turns. Like real templates it loses facts when it renders anew:
    assistant text is stripped, and tool calls are re-serialised."""

    stop_token_ids = (STOP,)

    def __init__(self) -> None:
        self.rendered_messages = 0

    def encode(self, text: str) -> list[int]:
        return [ord(char) for char in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in token_ids)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        head = "".join(f"[tool:{tool['function']['name']}]" for tool in tools)
        return self.encode(head) + self._turns(messages)

    def render_suffix(self, new_messages: Sequence[Message]) -> list[int]:
        return self.encode("\n") + self._turns(new_messages)

    def render_completion(self, message: Message) -> list[int]:
        return [*self.encode(self._text(message)), STOP]

    def parse_completion(self, token_ids: Sequence[int]) -> dict[str, Any]:
        text = self.decode([token for token in token_ids if token != STOP])
        content, opened, rest = text.partition(OPEN_TOOL)
        if not opened:
            return {"role": "assistant", "content": text.strip()}
        try:
            call = json.loads(rest.removesuffix(CLOSE_TOOL))
        except ValueError:
            return {"role": "assistant", "content": text.strip()}
        function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
        return {
            "role": "assistant",
            "content": content.strip(),
            "tool_calls": [{"type": "function", "function": function}],
        }

    def _turns(self, messages: Sequence[Message]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            self.rendered_messages += 1
            ids += self.encode(f"[{message['role']}]")
            if message["role"] == "assistant":
                ids += [*self.encode(self._text(message)), STOP, ord("\n")]
            else:
                ids += self.encode(f"{message['content']}\n")
        return ids + self.encode("[assistant]")

    def _text(self, message: Message) -> str:
        calls = "".join(
            OPEN_TOOL
            + json.dumps({"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"])})
            + CLOSE_TOOL
            for c in message.get("tool_calls") or []
        )
        return (message.get("content") or "").strip() + calls


@dataclass
class Say:
    """What a fake engine samples next: text (its stop token is added unless cut), or a failure.

    `gate` holds the completion back after its first half until it is set."""

    text: str = ""
    finish: FinishReason = "stop"
    error: Exception | None = None
    fail_after: int = 0
    gate: asyncio.Event | None = None


@dataclass
class CharEngine:
    """A token engine that says what `script` (a list, or a function of the request's number) tells it."""

    script: list[Say] | Callable[[int], Say]
    max_context: int = 100_000
    weight_version: int = 7
    model: str = "char"
    renderer: CharRenderer = field(default_factory=CharRenderer)
    prompts: list[list[int]] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)
    aborted: int = 0
    running: int = 0

    async def stream(self, prompt_ids: Sequence[int], params: SamplingParams) -> AsyncIterator[TokenChunk]:
        number = len(self.prompts)
        self.prompts.append(list(prompt_ids))
        self.params.append(params)
        say = self.script(number) if callable(self.script) else self.script[number]
        ids = self.renderer.encode(say.text) + ([STOP] if say.finish == "stop" else [])
        if len(ids) > params.max_tokens:
            ids, say = ids[: params.max_tokens], Say(say.text, "length", say.error, say.fail_after, say.gate)
        finished = False
        self.running += 1
        try:
            for at, token in enumerate(ids):
                if say.error is not None and at >= say.fail_after:
                    raise say.error
                if say.gate is not None and at == len(ids) // 2:
                    await say.gate.wait()
                yield TokenChunk((token,), (-0.5 - at / 64,), None, self.weight_version)
            if say.error is not None:
                raise say.error
            finished = True
            yield TokenChunk((), (), say.finish, self.weight_version)
        finally:
            self.running -= 1
            self.aborted += not finished

    async def close(self) -> None:
        pass


@dataclass
class Teacher:
    """A message engine that answers with scripted replies."""

    replies: list[ChatReply | Exception]
    model: str = "teacher"
    requests: list[ChatRequest] = field(default_factory=list)

    async def complete(self, request: ChatRequest) -> ChatReply:
        self.requests.append(request)
        reply = self.replies[len(self.requests) - 1]
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def close(self) -> None:
        pass
