"""One generation in flight. Several client connections may follow it (a retry joins the first send)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from orchard_core.engine.errors import EngineError, RenderError
from orchard_core.errors import OrchardError
from orchard_core.proxy.dialects.chat import ReplyHead
from orchard_core.proxy.errors import CallRefused
from orchard_core.proxy.generate import Generated

_log = logging.getLogger(__name__)


class Attempt:
    """Runs a call in its own task and shows its progress to every follower.

    `on_end(attempt)` is called exactly once, before any follower sees the end, so that what a client was told has
    been recorded. When the last follower leaves early, the generation is aborted (`abandoned`).
    `delivered` is for the server to set once a client was sent everything.
    """

    def __init__(self, index: int, head: ReplyHead, digest: bytes, on_end: Callable[[Attempt], None]) -> None:
        self.index = index
        self.head = head
        self.digest = digest
        self.generated: Generated | None = None
        self.refusal: CallRefused | None = None
        self._texts: list[str] = []
        self._followers = 0
        self._on_end = on_end
        self._changed = asyncio.Event()
        self._ended = False
        self.abandoned = False
        self.delivered = False
        self._task: asyncio.Task[Generated] | None = None

    @property
    def ended(self) -> bool:
        return self._ended

    def start(self, work: Coroutine[Any, Any, Generated]) -> None:
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(self._finish)

    def emit(self, text: str) -> None:
        """Show a piece of streamed text to the followers."""
        self._texts.append(text)
        self._wake()

    def abort(self, reason: CallRefused) -> None:
        """Stop generating; followers get `reason`."""
        if not self._ended:
            self._end(None, reason)
        if self._task is not None:
            self._task.cancel()

    async def follow(self) -> AsyncGenerator[str, None]:
        """The streamed texts from the beginning; ends when the call has ended."""
        at = 0
        self._followers += 1
        try:
            while True:
                changed = self._changed
                while at < len(self._texts):
                    at += 1
                    yield self._texts[at - 1]
                if self._ended:
                    break
                if changed is self._changed:
                    await changed.wait()
        finally:
            self._followers -= 1
            if not self._followers and not self._ended:
                self.abandoned = True
                self.abort(CallRefused("engine_failed", "the client hung up before the reply was complete"))

    async def result(self) -> Generated:
        """Wait for the end and give the recorded call. Raises CallRefused."""
        async for _ in self.follow():
            pass
        if self.generated is not None:
            return self.generated
        raise self.refusal or CallRefused("internal_error", "the call ended without a record")

    def _finish(self, task: asyncio.Task[Generated]) -> None:
        if self._ended:
            if not task.cancelled():
                task.exception()  # An aborted generation may fail while it stops; nobody waits for it.
            return
        if task.cancelled():
            self._end(None, CallRefused("engine_failed", "the generation was cancelled; send it again"))
            return
        error = task.exception()
        if error is None:
            self._end(task.result(), None)
        elif isinstance(error, CallRefused):
            self._end(None, error)
        elif isinstance(error, EngineError):
            self._end(None, CallRefused("engine_failed", str(error)))
        elif isinstance(error, RenderError):
            self._end(None, CallRefused("malformed_request", str(error)))
        elif isinstance(error, OrchardError):
            self._end(None, CallRefused("internal_error", str(error)))
        else:
            _log.error("a model call failed unexpectedly", exc_info=error)
            reason = f"the call failed with {type(error).__name__}: {error}"
            self._end(None, CallRefused("internal_error", reason))

    def _end(self, generated: Generated | None, refusal: CallRefused | None) -> None:
        self.generated, self.refusal, self._ended = generated, refusal, True
        self._on_end(self)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
