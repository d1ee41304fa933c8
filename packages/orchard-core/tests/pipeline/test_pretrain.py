"""A practice conversation becomes the very tokens that a rollout of it would have recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchard_core.engine.loading import load_model_folder
from orchard_core.engine.protocol import Renderer
from orchard_core.engine.tiny import make_tiny_model
from orchard_core.harness.style import BASH_TOOL
from orchard_core.pipeline.stages.pretrain import render


def call(command: str, **more: Any) -> dict[str, Any]:
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    tool_call = {"id": "c", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [tool_call], **more}


def conversation(*, first_weight: int | None = None) -> list[dict[str, Any]]:
    weight = {} if first_weight is None else {"weight": first_weight}
    return [
        {"role": "system", "content": "Repair."},
        {"role": "user", "content": "It fails."},
        call("sub 1 '<' '<=' && t", **weight),
        {"role": "tool", "tool_call_id": "c", "content": "FAIL"},
        call("undo && sub 1 '<' '>' && t"),
    ]


@pytest.fixture(scope="module")
def renderer(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder = make_tiny_model(
        tmp_path_factory.mktemp("tiny"),
        ["sub undo"],
        vocab_size=320,
        hidden=16,
        layers=1,
        heads=1,
        kv_heads=1,
    )
    return load_model_folder(Path(folder)).renderer


def test_the_tokens_are_those_of_the_calls_one_after_another(renderer: Renderer) -> None:
    messages = conversation()
    sample = render(messages, renderer)
    expected = list(renderer.render(messages[:2], [BASH_TOOL]))
    expected += renderer.render_completion(messages[2])
    expected += renderer.render_suffix(messages[3:4])
    expected += renderer.render_completion(messages[4])
    assert sample.ids.tolist() == expected
    trained = renderer.decode(sample.ids[sample.mask].tolist())
    assert trained.count("sub 1") == 2
    assert "FAIL" not in trained
    assert "It fails." not in trained


def test_a_message_of_weight_0_is_context_and_changes_no_token(renderer: Renderer) -> None:
    whole, part = render(conversation(), renderer), render(conversation(first_weight=0), renderer)
    assert part.ids.tolist() == whole.ids.tolist()
    trained = renderer.decode(part.ids[part.mask].tolist())
    assert "undo" in trained
    assert trained.count("sub 1") == 1
    assert render(conversation(first_weight=1), renderer).mask.tolist() == whole.mask.tolist()
