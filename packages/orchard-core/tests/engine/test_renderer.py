from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchard_core.engine.errors import RenderError
from orchard_core.engine.loading import ModelFolder
from orchard_core.engine.protocol import Renderer
from orchard_core.engine.renderer import ChatTemplateRenderer

TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}
QWEN3_LIKE = """{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' and loop.index0 > ns.last %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{{- m.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""

text = st.text(st.characters(codec="utf-8", exclude_characters="<>"), max_size=40)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-999, 999) | text, lambda x: st.lists(x, max_size=3)
)
calls = st.lists(
    st.tuples(st.sampled_from(["bash", "edit"]), st.dictionaries(text, values, max_size=3)), max_size=3
)


def assistant(content: str, made: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if made:
        message["tool_calls"] = [
            {
                "id": f"c{index}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
            }
            for index, (name, arguments) in enumerate(made)
        ]
    return message


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    plain = dict(message)
    if "tool_calls" in plain:
        plain["tool_calls"] = [{k: v for k, v in call.items() if k != "id"} for call in plain["tool_calls"]]
    return plain


@settings(max_examples=60, deadline=None)
@given(text, calls)
def test_a_rendered_completion_parses_back(folder: ModelFolder, content: str, made: Any) -> None:
    message = assistant(content, made)
    ids = folder.renderer.render_completion(message)
    assert ids[-1] in folder.renderer.stop_token_ids
    assert without_ids(folder.renderer.parse_completion(ids)) == without_ids(message)


@settings(max_examples=60, deadline=None)
@given(text, calls, st.lists(text, min_size=1, max_size=3), st.none() | text)
def test_pieces_join_to_the_whole_render(
    folder: ModelFolder, content: str, made: Any, results: list[str], user: str | None
) -> None:
    start = [{"role": "system", "content": "Fix bugs."}, {"role": "user", "content": "go"}]
    message = assistant(content, made)
    new = [{"role": "tool", "content": result, "tool_call_id": "c0"} for result in results]
    new += [] if user is None else [{"role": "user", "content": user}]
    renderer = folder.renderer
    whole = renderer.render_text([*start, message, *new], [TOOL])
    pieces = (
        renderer.render_text(start, [TOOL]) + renderer.completion_text(message) + renderer.suffix_text(new)
    )
    assert pieces == whole
    ids = [
        *renderer.render(start, [TOOL]),
        *renderer.render_completion(message),
        *renderer.render_suffix(new),
    ]
    assert renderer.decode(ids) == whole


@settings(max_examples=60, deadline=None)
@given(st.lists(text, max_size=4))
def test_encoding_by_segments_is_the_tokenizers_encoding(folder: ModelFolder, parts: list[str]) -> None:
    whole = "<|im_end|>\n<|im_start|>".join(parts)
    assert folder.renderer.encode(whole) == folder.tokenizer.encode(whole, add_special_tokens=False)


def test_it_is_a_renderer(folder: ModelFolder) -> None:
    assert isinstance(folder.renderer, Renderer)


def test_consecutive_tool_results_share_one_user_turn(folder: ModelFolder) -> None:
    new = [{"role": "tool", "content": c, "tool_call_id": c} for c in "ab"]
    rendered = folder.renderer.suffix_text(new)
    assert rendered.count("<|im_start|>user") == 1
    assert rendered.count("<tool_response>") == 2
    assert rendered.startswith("\n<|im_start|>")


@pytest.mark.parametrize(
    "body",
    [
        '{"name": "bash", "arguments": {',
        '{"name": 3, "arguments": {}}',
        '["bash"]',
        '{"name": "a", "arguments": []}',
    ],
)
def test_a_malformed_call_stays_content(folder: ModelFolder, body: str) -> None:
    raw = f"Hm.\n<tool_call>\n{body}\n</tool_call>"
    message = folder.renderer.parse_completion(folder.renderer.encode(raw + "<|im_end|>"))
    assert message == {"role": "assistant", "content": raw}


def test_call_ids_are_a_function_of_the_tokens(folder: ModelFolder) -> None:
    ids = folder.renderer.render_completion(assistant("", [("bash", {"command": "ls"})] * 2))
    first = folder.renderer.parse_completion(ids)["tool_calls"]
    assert first == folder.renderer.parse_completion(ids)["tool_calls"]
    assert first[0]["id"] != first[1]["id"]


def test_malformed_arguments_in_history_do_not_break_the_next_render(folder: ModelFolder) -> None:
    message = assistant("", [("bash", {})])
    message["tool_calls"][0]["function"]["arguments"] = '{"command": '
    assert "command" in folder.renderer.render_text([{"role": "user", "content": "x"}, message], [])


def test_arguments_render_the_same_however_they_are_spelled(folder: ModelFolder) -> None:
    tight, loose = assistant("", [("bash", {})]), assistant("", [("bash", {})])
    tight["tool_calls"][0]["function"]["arguments"] = '{"command":"\\u00e4"}'
    loose["tool_calls"][0]["function"]["arguments"] = '{ "command" : "ä" }'
    assert folder.renderer.render_completion(tight) == folder.renderer.render_completion(loose)


def test_a_template_that_rewrites_earlier_turns_still_gives_an_append_only_suffix(
    folder: ModelFolder,
) -> None:
    tokenizer = type(folder.tokenizer).from_pretrained(folder.path)
    tokenizer.chat_template = QWEN3_LIKE
    renderer = ChatTemplateRenderer(tokenizer)
    suffix = renderer.suffix_text([{"role": "user", "content": "more"}])
    assert suffix == "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"


def test_unusable_templates_are_refused_with_a_reason(folder: ModelFolder) -> None:
    tokenizer = type(folder.tokenizer).from_pretrained(folder.path)
    for template, reason in (("", "no chat template"), ("{{ messages[-1].content }}", "special token")):
        tokenizer.chat_template = template
        with pytest.raises(RenderError, match=reason):
            ChatTemplateRenderer(tokenizer)
    with pytest.raises(RenderError, match="assistant"):
        folder.renderer.render_suffix([{"role": "assistant", "content": "x"}])
