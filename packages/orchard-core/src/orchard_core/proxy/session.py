"""A session: what one rollout may ask of its model, and the record of what it asked."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from orchard_core.engine.protocol import Engine, Renderer, SamplingParams, TokenEngine
from orchard_core.proxy.attempt import Attempt
from orchard_core.proxy.dialects.chat import ChatCall, ReplyHead
from orchard_core.proxy.errors import CallRefused
from orchard_core.proxy.generate import CallContext, Generated, call_message_engine, call_token_engine
from orchard_core.proxy.tokens import PromptIndex
from orchard_core.trajectory.types import ModelCall

EndedBy = Literal["max_calls", "max_total_tokens", "context_overflow"]
"""Which limit a rollout ran into: a budget of its policy, or the model's context."""


@dataclass(frozen=True, slots=True)
class SessionPolicy:
    """What a session may do. `sampling` holds whatever the harness asks for (which may only lower
    `max_tokens`); its seed is the rollout's seed. `max_total_tokens` counts sampled tokens over all calls."""

    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_calls: int | None = None
    max_total_tokens: int | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class DroppedAttempt:
    """A generation that no client received whole: not a call, and never trained."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class SealedSession:
    """A finished session. `incomplete` says why the record lacks something (an infrastructure fault);
    None if it is whole. Calls are in order of their start and numbered without gaps."""

    calls: tuple[ModelCall, ...]
    incomplete: str | None
    ended_by: EndedBy | None = None
    dropped: tuple[DroppedAttempt, ...] = ()


def derive_seed(seed: int | None, index: int) -> int | None:
    """The seed of a session's call `index`: a stable hash, so that neighbouring seeds share nothing."""
    if seed is None:
        return None
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class Session:
    """One rollout's access to its model. Made by `RecordingProxy.open_session`."""

    def __init__(
        self,
        rollout_id: str,
        policy: SessionPolicy,
        engine: Engine,
        renderer: Renderer | None,
        on_seal: Callable[[Session], None],
    ) -> None:
        self.rollout_id = rollout_id
        self.policy = policy
        self.secret = secrets.token_urlsafe(32)
        self.ended_by: EndedBy | None = None
        self._engine = engine
        self._generate: Callable[[CallContext], Coroutine[Any, Any, Generated]]
        if isinstance(engine, TokenEngine):
            self._stops = engine.renderer.stop_token_ids
            self._generate = partial(call_token_engine, engine, PromptIndex(engine.renderer))
        else:
            self._stops = ()
            index = PromptIndex(renderer) if renderer is not None else None
            self._generate = partial(call_message_engine, engine, index)
        self._on_seal = on_seal
        self._calls: dict[int, ModelCall] = {}
        self._last: dict[bytes, Attempt] = {}
        self._running: dict[int, Attempt] = {}
        self._failed: dict[bytes, str] = {}
        self._dropped: list[DroppedAttempt] = []
        self._started = 0
        self._sampled = 0
        self._sealing = False
        self._sealed: SealedSession | None = None

    @property
    def base_path(self) -> str:
        """The path that a harness's base URL ends with."""
        return f"/r/{self.rollout_id}/v1"

    @property
    def shown_model(self) -> str:
        """The model name that the harness sees."""
        return self.policy.model or self._engine.model

    @property
    def calls(self) -> int:
        """How many calls have been recorded so far."""
        return len(self._calls)

    @property
    def in_flight(self) -> int:
        """How many calls are being answered now."""
        return len(self._running)

    def admit(self, call: ChatCall, body: Mapping[str, Any], digest: bytes, retry: bool) -> Attempt:
        """Start a call, or join the one that the same body (`digest`) already started. Raises CallRefused.

        A body that is re-sent while it is being answered joins. One that was answered gets the recorded answer again
        if the client marks it as a `retry` or never got the answer whole: a retry samples nothing anew.
        """
        if self._sealed is not None:
            raise CallRefused("session_sealed", "this rollout is over; its session takes no more calls")
        last = self._last.get(digest)
        if last is not None and (
            not last.ended or (last.generated is not None and (retry or not last.delivered))
        ):
            return last
        sampling = self._sampling(call)
        head = ReplyHead(f"chatcmpl-{self.rollout_id}-{self._started}", int(time.time()), self.shown_model)
        attempt = Attempt(self._started, head, digest, self._record)
        self._started += 1
        self._last[digest] = self._running[attempt.index] = attempt
        context = CallContext(
            call=call,
            body=body,
            index=attempt.index,
            rollout_id=self.rollout_id,
            head=head,
            sampling=dataclasses.replace(sampling, seed=derive_seed(sampling.seed, attempt.index)),
            emit=attempt.emit if call.stream else None,
        )
        attempt.start(self._generate(context))
        return attempt

    def seal(self) -> SealedSession:
        """Freeze the record: running calls are aborted, later ones refused. Sealing twice gives the same."""
        if self._sealed is None:
            self._sealing = True
            running = list(self._running.values())
            for attempt in running:
                attempt.abort(CallRefused("session_sealed", "this rollout is over; its session was sealed"))
            self._sealed = self._freeze(len(running))
            self._on_seal(self)
        return self._sealed

    def _freeze(self, aborted: int) -> SealedSession:
        reasons = [f"{aborted} call(s) in flight were aborted"] if aborted else []
        reasons += self._failed.values()
        ordered = [self._calls[index] for index in sorted(self._calls)]
        return SealedSession(
            calls=tuple(dataclasses.replace(call, index=at) for at, call in enumerate(ordered)),
            incomplete="; ".join(reasons) or None,
            ended_by=self.ended_by,
            dropped=tuple(self._dropped),
        )

    def _sampling(self, call: ChatCall) -> SamplingParams:
        """The policy's sampling within what its budgets leave. Raises CallRefused (budget_exceeded)."""
        policy = self.policy
        if policy.max_calls is not None and len(self._calls) + len(self._running) >= policy.max_calls:
            self.ended_by = "max_calls"
            raise CallRefused(
                "budget_exceeded", f"this rollout may make {policy.max_calls} model calls, and has made them"
            )
        limits = [policy.sampling.max_tokens]
        if policy.max_total_tokens is not None:
            left = policy.max_total_tokens - self._sampled
            if left < 1:
                self.ended_by = "max_total_tokens"
                raise CallRefused(
                    "budget_exceeded",
                    f"this rollout may sample {policy.max_total_tokens} tokens, and has sampled them",
                )
            limits.append(left)
        if call.max_tokens is not None:
            limits.append(call.max_tokens)
        stops = tuple(dict.fromkeys([*policy.sampling.stop_token_ids, *self._stops]))
        return dataclasses.replace(policy.sampling, max_tokens=min(limits), stop_token_ids=stops)

    def _record(self, attempt: Attempt) -> None:
        """Take in how an attempt ended."""
        self._running.pop(attempt.index, None)
        if attempt.generated is not None:
            record = attempt.generated.record
            self._calls[attempt.index] = record
            self._sampled += int(record.response["usage"]["completion_tokens"])
            self._failed.pop(attempt.digest, None)
            if self.ended_by in (None, "context_overflow"):
                self.ended_by = "context_overflow" if attempt.generated.overflow else None
            return
        refusal = attempt.refusal
        reason = str(refusal) if refusal is not None else "unknown"
        self._dropped.append(DroppedAttempt(attempt.index, reason))
        if not self._sealing and not attempt.abandoned:
            self._failed[attempt.digest] = reason
        # A retry of the newest attempt takes over its number, and with it its seed.
        if attempt.index == self._started - 1:
            self._started -= 1
