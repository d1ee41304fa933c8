"""What generates tokens: the engine protocols and their requests.

A `TokenEngine` takes and gives token ids; a `MessageEngine` takes chat messages (a remote
endpoint, a scripted teacher). The proxy serves both and records which of the two it was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

Message = Mapping[str, Any]
"""A chat message in OpenAI form: role, content, tool_calls, tool_call_id."""
Tool = Mapping[str, Any]
"""A function tool in OpenAI form."""
FinishReason = Literal["stop", "length", "tool_calls", "abort"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample. `seed` makes a request's tokens a function of prompt and weights alone."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 512
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Newly sampled tokens. `logprobs[i]` is log p of `token_ids[i]` under the distribution that was
    sampled from (after temperature and truncation). `finish_reason` is set on the last chunk only."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason | None = None
    weight_version: int = 0


@runtime_checkable
class Renderer(Protocol):
    """Between messages and token ids, for one model family."""

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The prompt, ending with the generation prompt of the assistant's turn."""
        ...

    def render_suffix(self, new_messages: Sequence[Message]) -> list[int]:
        """What follows an assistant's completion (ended by its stop token): the separator, the new
        (non-assistant) messages, and the next generation prompt."""
        ...

    def render_completion(self, message: Message) -> list[int]:
        """An assistant message as the tokens a model would have sampled, stop token included."""
        ...

    def parse_completion(self, token_ids: Sequence[int]) -> dict[str, Any]:
        """Sampled tokens as an assistant message (content, tool_calls); malformed calls stay content."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str: ...

    @property
    def stop_token_ids(self) -> tuple[int, ...]: ...


@runtime_checkable
class TokenEngine(Protocol):
    """An engine that takes and gives token ids."""

    @property
    def model(self) -> str: ...

    @property
    def renderer(self) -> Renderer: ...

    @property
    def weight_version(self) -> int: ...

    @property
    def max_context(self) -> int: ...

    def stream(self, prompt_ids: Sequence[int], params: SamplingParams) -> AsyncIterator[TokenChunk]:
        """Generate. Closing the iterator early aborts the request and frees its place."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A dialect-independent request. `session` is the rollout's id, `extra` the unread fields."""

    model: str
    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    session: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChatReply:
    """An assistant message with what the engine itself reported of it."""

    message: Message
    finish_reason: FinishReason
    prompt_ids: tuple[int, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    weight_version: int = 0


@runtime_checkable
class MessageEngine(Protocol):
    """An engine that takes messages."""

    @property
    def model(self) -> str: ...

    async def complete(self, request: ChatRequest) -> ChatReply: ...

    async def close(self) -> None: ...


Engine = TokenEngine | MessageEngine
