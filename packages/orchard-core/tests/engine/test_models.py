from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from orchard_core.engine.errors import ModelFolderError
from orchard_core.engine.loading import ModelFolder, load_model_folder
from orchard_core.engine.protocol import SamplingParams
from orchard_core.engine.smollm import smollm2_folder
from orchard_core.engine.tiny import make_tiny_model
from orchard_core.engine.torch_engine import TorchEngine

SMALL: dict[str, Any] = {
    "vocab_size": 320,
    "hidden": 32,
    "layers": 1,
    "heads": 2,
    "kv_heads": 1,
    "moe_intermediate": 16,
}


def test_the_same_arguments_make_the_same_bytes(tmp_path: Path) -> None:
    one = make_tiny_model(tmp_path / "1", ["ab ab"], seed=3, **SMALL)
    two = make_tiny_model(tmp_path / "2", ["ab ab"], seed=3, **SMALL)
    other = make_tiny_model(tmp_path / "3", ["ab ab"], seed=4, **SMALL)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    assert (one / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


def test_the_default_size_is_a_few_million_parameters(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(make_tiny_model(tmp_path, ["some text"]))
    assert 2e6 < model.num_parameters() < 8e6
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def test_digits_operators_and_the_bash_scaffold_are_single_tokens(folder: ModelFolder) -> None:
    pieces = [folder.tokenizer.decode([i]) for i in folder.renderer.encode("x<=128 //y==z != w")]
    assert [p.strip() for p in pieces if p.strip()] == [
        "x",
        "<=",
        "1",
        "2",
        "8",
        "//",
        "y",
        "==",
        "z",
        "!=",
        "w",
    ]
    call = {"id": "1", "function": {"name": "bash", "arguments": {"command": "cat"}}}
    completion = folder.renderer.render_completion({"role": "assistant", "content": "", "tool_calls": [call]})
    assert len(completion) <= 6


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda f: shutil.rmtree(f), "no model folder"),
        (lambda f: (f / "config.json").unlink(), "config.json"),
        (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
        (lambda f: (f / "config.json").write_text("{}"), "model_type"),
        (lambda f: (f / "model.safetensors").unlink(), "no weights"),
        (lambda f: (f / "tokenizer.json").unlink(), "tokenizer"),
        (lambda f: (f / "tokenizer.json").write_text("{}"), "can't be loaded"),
        (lambda f: (f / "chat_template.jinja").unlink(), "chat template"),
    ],
)
def test_a_damaged_folder_is_named_in_one_sentence(tiny_folder: Path, tmp_path: Path, damage, named) -> None:  # type: ignore[no-untyped-def]
    copy = tmp_path / "copy"
    shutil.copytree(tiny_folder, copy)
    damage(copy)
    with pytest.raises(ModelFolderError, match=named):
        load_model_folder(copy)


def test_a_whole_folder_loads(folder: ModelFolder) -> None:
    assert folder.config["model_type"] == "qwen3_moe"
    assert json.dumps(folder.config)


@pytest.mark.slow
async def test_a_real_pretrained_model_generates_with_exact_records(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    pytest.importorskip("gguf")
    folder = smollm2_folder(tmp_path_factory.mktemp("smollm"))
    engine = TorchEngine.load(folder, max_batch=2, max_context=256, threads=1)
    renderer = engine.renderer
    prompt = renderer.render([{"role": "user", "content": "What is the capital of France?"}], [])
    greedy: list[int] = []
    async for chunk in engine.stream(prompt, SamplingParams(temperature=0, max_tokens=8)):
        greedy += chunk.token_ids
    assert "Paris" in renderer.decode(greedy)
    ids: list[int] = []
    logprobs: list[float] = []
    async for chunk in engine.stream(prompt, SamplingParams(temperature=0.7, max_tokens=8, seed=1)):
        ids += chunk.token_ids
        logprobs += chunk.logprobs
    await engine.close()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    expected = torch.log_softmax(logits / 0.7, -1).gather(1, torch.tensor(ids)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(logprobs), expected, atol=1e-4, rtol=0)
