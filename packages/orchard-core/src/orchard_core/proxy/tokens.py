"""Prompts as token facts: a call that continues an earlier one extends its exact ids.

Re-rendering a history re-tokenises what the model sampled and may change its ids, so the sampled ids are
spliced in and only the new messages are rendered. Every earlier call stays a possible parent (sub-agents
interleave in one session), and the longest match wins.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchard_core.engine.errors import RenderError
from orchard_core.engine.protocol import Message, Renderer, Tool
from orchard_core.proxy.canonical import chain, extend_chain
from orchard_core.trajectory.types import PromptMode

_log = logging.getLogger(__name__)
_HOLD = frozenset("<[{`")
"""Characters with which the tool-call and reasoning syntaxes of known model families begin."""
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's ids (shape (T,)), how they came to be, and the digest of the conversation that they show."""

    ids: NDArray[np.int32]
    mode: PromptMode
    digest: bytes


class PromptIndex:
    """The calls of one session that a later call may continue."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self._endings: dict[bytes, NDArray[np.int32]] = {}

    def build(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Prompt:
        """Extend the longest earlier call that `messages` continue, or render everything.

        Raises RenderError if the conversation can't be rendered."""
        digests = chain(tools, messages)
        # The new messages are the tail without assistant turns; a match must end where it begins or later,
        # and must leave at least one message to answer.
        for count in range(len(messages) - 1, 0, -1):
            if messages[count].get("role") == "assistant":
                break
            known = self._endings.get(digests[count])
            suffix = None if known is None else self._suffix(messages[count:])
            if known is not None and suffix is not None:
                return Prompt(np.concatenate([known, suffix]), "extended", digests[-1])
        return Prompt(_array(self.renderer.render(messages, tools)), "rendered", digests[-1])

    def _suffix(self, new_messages: Sequence[Message]) -> NDArray[np.int32] | None:
        try:
            return _array(self.renderer.render_suffix(new_messages))
        except RenderError as error:
            _log.debug("no suffix, so the conversation is rendered whole: %s", error)
            return None

    def add(self, prompt: Prompt, reply: Message, completion_ids: Sequence[int], complete: bool) -> None:
        """Offer a finished call for extension; one that was cut (not `complete`) has no end to build on."""
        if not complete or not completion_ids:
            return
        stops = self.renderer.stop_token_ids
        closing = stops[:1] if completion_ids[-1] not in stops else ()
        ending = np.concatenate([prompt.ids, _array([*completion_ids, *closing])])
        self._endings[extend_chain(prompt.digest, reply)] = ending


def _array(ids: Sequence[int]) -> NDArray[np.int32]:
    return np.asarray(ids, dtype=np.int32)


class TextStream:
    """Turns sampled ids into text that is safe to send before the completion is whole.

    Text is held back from the first character that may begin a tool call or a reasoning block, and so is white
    space at the end (parsers strip it); what was held back is sent by `rest` once the message is parsed.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._stops = frozenset(renderer.stop_token_ids)
        self._ids: list[int] = []
        self._read = 0
        self._pending = ""
        self._sent = ""
        self._holding = False

    def feed(self, token_ids: Sequence[int]) -> str:
        """New text that can be sent now, "" if none."""
        if self._holding:
            return ""
        self._ids.extend(token for token in token_ids if token not in self._stops)
        self._pending += self._decode_new()
        held = next((at for at, char in enumerate(self._pending) if char in _HOLD), None)
        if held is not None:
            self._holding = True
            self._pending = self._pending[:held]
        ready = self._pending.rstrip()
        self._pending = self._pending[len(ready) :]
        if ready and not self._sent:
            ready = self._with_parsed_start(ready)
        self._sent += ready
        return ready

    def rest(self, content: str) -> str:
        """What of the whole content was not sent yet."""
        if content.startswith(self._sent):
            return content[len(self._sent) :]
        _log.warning("the renderer's parsed text does not continue the text that was already streamed")
        return ""

    def _decode_new(self) -> str:
        # Ids decode differently in context (bytes of one character, spaces), so a window that starts a
        # little earlier is decoded with and without the new ids.
        start = max(0, self._read - 8)
        before = self._renderer.decode(self._ids[start : self._read])
        after = self._renderer.decode(self._ids[start:])
        if after.endswith(_UNFINISHED) or not after.startswith(before):
            return ""
        self._read = len(self._ids)
        return after[len(before) :]

    def _with_parsed_start(self, text: str) -> str:
        """Whether white space at the start counts is the parser's choice."""
        parsed = str(self._renderer.parse_completion(self._ids).get("content") or "")
        bare = text.lstrip()
        return parsed[: len(parsed) - len(parsed.lstrip())] + bare
