"""Engines whose replies are given: for teachers, demonstrations and tests of what surrounds an engine."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

from orchard_core.engine.errors import ContextOverflowError, EngineError
from orchard_core.engine.protocol import (
    ChatReply,
    ChatRequest,
    FinishReason,
    Message,
    Renderer,
    SamplingParams,
    TokenChunk,
)

Policy = Callable[[ChatRequest], Message | Awaitable[Message]]
"""Answers a request with an assistant message; may be a coroutine function."""
TokenPolicy = Callable[[Sequence[int]], Message | Sequence[int]]
"""Answers prompt ids with an assistant message or with completion ids."""


class ScriptedEngine:
    """A `MessageEngine` that asks a policy. Keeps the requests it saw in `requests`."""

    def __init__(self, policy: Policy, *, model: str = "scripted") -> None:
        self._policy = policy
        self._model = model
        self.requests: list[ChatRequest] = []

    @property
    def model(self) -> str:
        return self._model

    async def complete(self, request: ChatRequest) -> ChatReply:
        self.requests.append(request)
        answer = self._policy(request)
        message = await answer if inspect.isawaitable(answer) else answer
        finish: FinishReason = "tool_calls" if message.get("tool_calls") else "stop"
        return ChatReply({"role": "assistant", "content": "", **message}, finish)

    async def close(self) -> None:
        """Nothing to free."""


class ScriptedTokenEngine:
    """A `TokenEngine` that emits given completions, each token with the log-probability `logprob`.

    `completions` is a policy, or a sequence that is used up in order (then EngineError). Keeps the
    prompts it saw in `prompts`.
    """

    def __init__(
        self,
        renderer: Renderer,
        completions: TokenPolicy | Sequence[Message | Sequence[int]],
        *,
        model: str = "scripted",
        max_context: int = 1 << 20,
        chunk_tokens: int = 4,
        logprob: float = -0.5,
    ) -> None:
        self._renderer = renderer
        self._policy = completions if callable(completions) else _in_order(completions)
        self._model = model
        self._max_context = max_context
        self._chunk_tokens = chunk_tokens
        self._logprob = logprob
        self.prompts: list[tuple[int, ...]] = []
        self.weight_version = 0

    @property
    def model(self) -> str:
        return self._model

    @property
    def renderer(self) -> Renderer:
        return self._renderer

    @property
    def max_context(self) -> int:
        return self._max_context

    async def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[TokenChunk, None]:
        room = self._max_context - len(prompt_ids)
        if room < 1:
            raise ContextOverflowError(f"the prompt fills the context of {self._max_context} tokens")
        self.prompts.append(tuple(prompt_ids))
        answer = self._policy(prompt_ids)
        ids = self._renderer.render_completion(answer) if isinstance(answer, Mapping) else list(answer)
        limit = min(params.max_tokens, room)
        finish: FinishReason = "stop" if len(ids) <= limit else "length"
        ids = ids[:limit]
        for start in range(0, len(ids), self._chunk_tokens):
            piece = tuple(ids[start : start + self._chunk_tokens])
            last = start + self._chunk_tokens >= len(ids)
            yield TokenChunk(
                piece, (self._logprob,) * len(piece), finish if last else None, self.weight_version
            )

    async def close(self) -> None:
        """Nothing to free."""


def _in_order(completions: Sequence[Message | Sequence[int]]) -> TokenPolicy:
    remaining = list(completions)

    def take(_: Sequence[int]) -> Message | Sequence[int]:
        if not remaining:
            raise EngineError("the script has no completion left")
        return remaining.pop(0)

    return take
