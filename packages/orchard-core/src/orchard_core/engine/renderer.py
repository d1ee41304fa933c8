"""Between messages and token ids, through a Hugging Face tokenizer and its chat template.

A template says only how a whole conversation looks. The pieces that an agent's turn needs (what a
completion looks like, what follows it) are differences of two renders around a placeholder turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from orchard_core.engine.errors import RenderError
from orchard_core.engine.protocol import Message, Tool
from orchard_core.engine.tool_calls import parse_message, template_message
from orchard_core.errors import MissingExtraError

try:
    import jinja2
except ImportError as error:
    raise MissingExtraError("jinja2", "hf") from error

_PLACEHOLDER = "orchard-placeholder"
_USER: dict[str, Any] = {"role": "user", "content": "orchard-question"}
_CACHED_SEGMENTS = 8192
_PROBE = "user\nA b, 12 <= x\n  y"


class ChatTemplateRenderer:
    """A `Renderer` for tokenizers whose template ends each turn with a special token (ChatML and kin)."""

    def __init__(self, tokenizer: Any) -> None:
        """Raises RenderError when there is no template or it does not end turns with a special token."""
        if not tokenizer.chat_template:
            raise RenderError(
                "the tokenizer has no chat template; add chat_template.jinja to the model folder"
            )
        self._tokenizer = tokenizer
        specials = {token.content: index for index, token in _special_tokens(tokenizer).items()}
        self._special_ids = specials
        alternatives = "|".join(re.escape(text) for text in sorted(specials, key=len, reverse=True))
        self._special = re.compile(f"({alternatives})")
        self._encode_segment = lru_cache(_CACHED_SEGMENTS)(self._encode_plain)
        self._turn_end = self._find_turn_end()
        self._generation_prefix = self._template([_USER], (), generate=True)
        self._splits = self._splits_at_special_tokens()

    @property
    def tokenizer(self) -> Any:
        """The Hugging Face tokenizer behind this renderer."""
        return self._tokenizer

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The end of a turn, then the tokenizer's end of text where it is another token."""
        stops = [self._special_ids[self._turn_end]]
        if self._tokenizer.eos_token_id is not None and self._tokenizer.eos_token_id not in stops:
            stops.append(int(self._tokenizer.eos_token_id))
        return tuple(stops)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        return self.encode(self.render_text(messages, tools))

    def render_suffix(self, new_messages: Sequence[Message]) -> list[int]:
        return self.encode(self.suffix_text(new_messages))

    def render_completion(self, message: Message) -> list[int]:
        return self.encode(self.completion_text(message))

    def parse_completion(self, token_ids: Sequence[int]) -> dict[str, Any]:
        ids = list(token_ids)
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return parse_message(self.decode(ids), token_ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def encode(self, text: str) -> list[int]:
        """Text as ids, special tokens recognised. Segments between them are cached."""
        if not self._splits:
            return list(self._encode_plain(text))
        ids: list[int] = []
        for segment in self._special.split(text):
            special = self._special_ids.get(segment)
            if special is not None:
                ids.append(special)
            elif segment:
                ids.extend(self._encode_segment(segment))
        return ids

    def render_text(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        """The prompt's text, ending with the generation prompt."""
        return self._template(messages, tools, generate=True)

    def completion_text(self, message: Message) -> str:
        """An assistant message's text up to and with its turn end."""
        text = self._template([_USER, {**message, "role": "assistant"}], (), generate=False)
        if not text.startswith(self._generation_prefix):
            raise RenderError(
                "the chat template renders an assistant turn differently from its generation prompt; "
                "completions of this model can't be rendered from messages"
            )
        completion = text[len(self._generation_prefix) :]
        return completion[: completion.rindex(self._turn_end)] + self._turn_end

    def suffix_text(self, new_messages: Sequence[Message]) -> str:
        """The text between an assistant's turn end and its next turn's first token."""
        if any(message["role"] == "assistant" for message in new_messages):
            raise RenderError("a suffix holds only what follows an assistant's turn, no assistant message")
        turn = _placeholder_turn(new_messages)
        text = self._template([_USER, turn, *new_messages], (), generate=True)
        start = text.find(_PLACEHOLDER)
        if start < 0:
            raise RenderError(
                "the chat template drops earlier assistant turns; conversations can't be extended"
            )
        return text[text.index(self._turn_end, start) + len(self._turn_end) :]

    def _template(self, messages: Sequence[Message], tools: Sequence[Tool], *, generate: bool) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                [template_message(message) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                add_generation_prompt=generate,
                tokenize=False,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise RenderError(f"the chat template can't render this conversation: {error}") from error
        return text

    def _encode_plain(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _find_turn_end(self) -> str:
        text = self._template([_USER, {"role": "assistant", "content": _PLACEHOLDER}], (), generate=False)
        start = text.find(_PLACEHOLDER)
        match = self._special.search(text, start + len(_PLACEHOLDER)) if start >= 0 else None
        if match is None:
            raise RenderError("the chat template does not end assistant turns with a special token")
        return match.group()

    def _splits_at_special_tokens(self) -> bool:
        """Whether text between special tokens encodes alone as it does in place (not so with tokenizers
        that mark the text's first word)."""
        text = self._turn_end.join((_PROBE, _PROBE, ""))
        parts = (*self._encode_plain(_PROBE), self._special_ids[self._turn_end])
        return self._encode_plain(text) == parts + parts


def _special_tokens(tokenizer: Any) -> Mapping[int, Any]:
    return {index: token for index, token in tokenizer.added_tokens_decoder.items() if token.special}


def _placeholder_turn(new_messages: Sequence[Message]) -> dict[str, Any]:
    """An assistant turn that the new messages may follow: one that made the calls they answer."""
    turn: dict[str, Any] = {"role": "assistant", "content": _PLACEHOLDER}
    answered = [message for message in new_messages if message["role"] == "tool"]
    if answered:
        turn["tool_calls"] = [
            {
                "id": message.get("tool_call_id", f"call_{index}"),
                "type": "function",
                "function": {"name": "placeholder", "arguments": {}},
            }
            for index, message in enumerate(answered)
        ]
    return turn
