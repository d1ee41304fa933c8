"""One model call against an engine: from a parsed request to a recorded ModelCall."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchard_core.engine.errors import ContextOverflowError, EngineError, RenderError
from orchard_core.engine.protocol import (
    ChatReply,
    ChatRequest,
    FinishReason,
    MessageEngine,
    SamplingParams,
    TokenChunk,
    TokenEngine,
)
from orchard_core.proxy.dialects import chat
from orchard_core.proxy.tokens import Prompt, PromptIndex, TextStream
from orchard_core.trajectory.types import ModelCall, PromptMode, TokenSource

_log = logging.getLogger(__name__)
_NO_IDS: NDArray[np.int32] = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class CallContext:
    """What a call needs to know besides its engine. `emit` takes text to stream (None when not streaming);
    `sampling` is final (capped and seeded); `index` is the call's place in its session."""

    call: chat.ChatCall
    body: Mapping[str, Any]
    index: int
    rollout_id: str
    head: chat.ReplyHead
    sampling: SamplingParams
    emit: Callable[[str], None] | None


@dataclass(frozen=True, slots=True)
class Generated:
    """A recorded call, its text that was not streamed before its end, and whether the context was full."""

    record: ModelCall
    rest: str
    overflow: bool = False


@dataclass(slots=True)
class _Facts:
    """What a call found out, before it becomes a record."""

    message: Mapping[str, Any]
    finish_reason: FinishReason
    prompt_ids: Sequence[int] | NDArray[np.int32] | None = None
    completion_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    source: TokenSource = "none"
    mode: PromptMode = "none"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    weight_version: int = 0
    first_token_at: float = 0.0
    rest: str | None = None
    overflow: bool = False


async def call_token_engine(engine: TokenEngine, index: PromptIndex, context: CallContext) -> Generated:
    """Sample from a token engine. Raises EngineError; a full context is a normal, empty reply."""
    started_at = time.time()
    request = context.call.request
    prompt = index.build(request.messages, request.tools)
    facts = _Facts({"content": ""}, "length", prompt.ids, [], [], "engine", prompt.mode, len(prompt.ids))
    room = engine.max_context - len(prompt.ids)
    try:
        if room < 1:
            raise ContextOverflowError("the prompt fills the model's context")
        sampling = dataclasses.replace(context.sampling, max_tokens=min(context.sampling.max_tokens, room))
        await _sample(engine, prompt, sampling, context, facts)
    except ContextOverflowError:
        facts.overflow = True
        facts.weight_version = engine.weight_version
    generated = _generated(context, facts, engine.model, started_at)
    if not facts.overflow:
        reply = generated.record.response["choices"][0]["message"]
        index.add(prompt, reply, facts.completion_ids or (), complete=facts.finish_reason != "length")
    return generated


async def call_message_engine(
    engine: MessageEngine, index: PromptIndex | None, context: CallContext
) -> Generated:
    """Ask a message engine; its ids are recorded if it reports them, rendered if there is an `index` (and so a renderer), else absent."""
    started_at = time.time()
    request = dataclasses.replace(
        context.call.request, model=engine.model, sampling=context.sampling, session=context.rollout_id
    )
    try:
        reply = await engine.complete(request)
    except ContextOverflowError:
        facts = _Facts({"content": ""}, "length", overflow=True)
        return _generated(context, facts, engine.model, started_at)
    if reply.finish_reason == "abort":
        raise EngineError("the engine aborted the request; send it again")
    message = chat.reply_message(reply.message, context.index)
    facts = _facts_of_reply(reply, message, index, request)
    return _generated(context, facts, engine.model, started_at)


async def _sample(
    engine: TokenEngine, prompt: Prompt, sampling: SamplingParams, context: CallContext, facts: _Facts
) -> None:
    ids: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    finish: FinishReason | None = None
    text = TextStream(engine.renderer) if context.emit is not None else None
    async with _closing(engine.stream(prompt.ids.tolist(), sampling)) as chunks:
        async for chunk in chunks:
            if chunk.token_ids:
                facts.first_token_at = facts.first_token_at or time.time()
                ids.extend(chunk.token_ids)
                logprobs.extend(chunk.logprobs)
                versions.append(chunk.weight_version)
            if text is not None and context.emit is not None and (ready := text.feed(chunk.token_ids)):
                context.emit(ready)
            if chunk.finish_reason is not None:
                finish = chunk.finish_reason
                break
    if finish is None or finish == "abort":
        raise EngineError("the engine ended the request early; send it again")
    if len(ids) != len(logprobs):
        raise EngineError("the engine gave a different number of ids and logprobs")
    facts.completion_ids, facts.logprobs, facts.completion_tokens = ids, logprobs, len(ids)
    # Weights may change while a completion is sampled; the oldest that took part bounds its staleness.
    facts.weight_version = min(versions, default=engine.weight_version)
    facts.finish_reason = finish
    facts.message = engine.renderer.parse_completion(ids)
    if text is not None:
        facts.rest = text.rest(facts.message.get("content") or "")


def _facts_of_reply(
    reply: ChatReply,
    message: Mapping[str, Any],
    index: PromptIndex | None,
    request: ChatRequest,
) -> _Facts:
    facts = _Facts(
        message,
        reply.finish_reason,
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        weight_version=reply.weight_version,
    )
    if reply.prompt_ids is not None and reply.token_ids is not None:
        facts.prompt_ids, facts.completion_ids = reply.prompt_ids, reply.token_ids
        facts.source, facts.mode = "engine", "reported"
        if reply.logprobs is not None and len(reply.logprobs) == len(reply.token_ids):
            facts.logprobs = reply.logprobs
    elif index is not None:
        _render_facts(facts, index, request, complete=reply.finish_reason != "length")
    if facts.prompt_ids is not None and facts.completion_ids is not None:
        facts.prompt_tokens = facts.prompt_tokens or len(facts.prompt_ids)
        facts.completion_tokens = facts.completion_tokens or len(facts.completion_ids)
    return facts


def _render_facts(facts: _Facts, index: PromptIndex, request: ChatRequest, complete: bool) -> None:
    try:
        prompt = index.build(request.messages, request.tools)
        completion_ids = index.renderer.render_completion(facts.message)
    except RenderError as error:
        # The harness still gets its reply; the call just can't be trained, and is counted so.
        _log.warning("a reply has no token ids: %s", error)
        return
    facts.prompt_ids, facts.completion_ids = prompt.ids, completion_ids
    facts.mode, facts.source = prompt.mode, "rendered"
    index.add(prompt, facts.message, completion_ids, complete)


def _generated(context: CallContext, facts: _Facts, model: str, started_at: float) -> Generated:
    finished_at = time.time()
    record_id = f"{context.rollout_id}-{context.index}"
    message = chat.reply_message(facts.message, context.index)
    finish: str = facts.finish_reason
    if finish == "stop" and message.get("tool_calls"):
        finish = "tool_calls"
    counted = chat.usage(facts.prompt_tokens, facts.completion_tokens)
    record = ModelCall(
        id=record_id,
        index=context.index,
        request=context.body,
        response=chat.completion(context.head, message, finish, counted),
        prompt_ids=_array(facts.prompt_ids),
        completion_ids=_array(facts.completion_ids),
        logprobs=None if facts.logprobs is None else np.asarray(facts.logprobs, dtype=np.float32),
        token_source=facts.source,
        prompt_mode=facts.mode,
        finish_reason=finish,
        model=model,
        weight_version=facts.weight_version,
        started_at=started_at,
        first_token_at=facts.first_token_at or finished_at,
        finished_at=finished_at,
    )
    rest = message["content"] or "" if facts.rest is None else facts.rest
    return Generated(record, rest, facts.overflow)


def _array(ids: Sequence[int] | NDArray[np.int32] | None) -> NDArray[np.int32]:
    return _NO_IDS if ids is None else np.asarray(ids, dtype=np.int32)


@asynccontextmanager
async def _closing(stream: AsyncIterator[TokenChunk]) -> AsyncIterator[AsyncIterator[TokenChunk]]:
    """Close the iterator on every way out, so that an abandoned request frees its place in the engine."""
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
