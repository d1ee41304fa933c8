"""Loading and writing Hugging Face model folders for training."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from orchard_core.engine.errors import ModelFolderError
from orchard_core.errors import UsageError
from orchard_core.train.folders import atomic_folder
from orchard_core.train.packing import SEGMENTED

_PACKABLE_LAYERS = {"full_attention", "sliding_attention"}
_COMPANIONS = (
    "tokenizer*",
    "vocab.*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "generation_config.json",
    "*.model",
)


def load_causal_lm(folder: Path) -> Any:
    """The causal language model of a folder in float32, ready for packed rows.

    Raises ModelFolderError where the folder lacks config or weights, UsageError where the
    architecture carries state across a row, which packing cannot separate.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    if not (folder / "config.json").is_file():
        raise ModelFolderError(f"{folder} is no model folder: config.json is missing")
    if not list(folder.glob("*.safetensors")):
        raise ModelFolderError(f"{folder} has no weights: no *.safetensors file in it")
    config = AutoConfig.from_pretrained(folder)
    kinds = set(getattr(config, "layer_types", None) or ()) - _PACKABLE_LAYERS
    if kinds:
        raise UsageError(f"the torch backend cannot pack layers of kind {', '.join(sorted(kinds))}")
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32", attn_implementation=SEGMENTED)


def copy_companions(source: Path, target: Path) -> None:
    """Copy tokenizer, chat template and generation settings."""
    for pattern in _COMPANIONS:
        for path in source.glob(pattern):
            if path.is_file():
                shutil.copyfile(path, target / path.name)


def export(model: Any, source: Path, folder: Path) -> Path:
    """Write model and companions as one folder, atomically; returns it."""
    with atomic_folder(folder) as draft:
        model.save_pretrained(draft)
        copy_companions(source, draft)
    return folder
