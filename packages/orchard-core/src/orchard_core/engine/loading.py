"""Checks and opens model folders in the standard Hugging Face form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchard_core.engine.errors import ModelFolderError
from orchard_core.engine.renderer import ChatTemplateRenderer
from orchard_core.errors import MissingExtraError

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A checked folder with its parsed config and its tokenizer."""

    path: Path
    config: dict[str, Any]
    tokenizer: Any
    renderer: ChatTemplateRenderer


def load_model_folder(folder: Path | str) -> ModelFolder:
    """Check a folder and load its tokenizer (not its weights).

    Raises ModelFolderError with one sentence that names what is missing.
    """
    path = Path(folder)
    config = _check_files(path)
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingExtraError("transformers", "hf") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelFolderError(f"the tokenizer in {path} can't be loaded: {error}") from error
    if not tokenizer.chat_template:
        raise ModelFolderError(
            f"the tokenizer in {path} has no chat template; add chat_template.jinja to the folder"
        )
    return ModelFolder(path, config, tokenizer, ChatTemplateRenderer(tokenizer))


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars: a library must not draw on its user's terminal."""
    from transformers.utils import logging

    hf_logging: Any = logging
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()


def _check_files(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise ModelFolderError(f"there is no model folder {path}")
    config_file = path / "config.json"
    if not config_file.is_file():
        raise ModelFolderError(f"the model folder {path} has no config.json")
    try:
        config = json.loads(config_file.read_text("utf-8"))
    except ValueError as error:
        raise ModelFolderError(f"{config_file} is not valid JSON: {error}") from error
    if not isinstance(config, dict) or not config.get("model_type"):
        raise ModelFolderError(f"{config_file} names no model_type")
    if not any(any(path.glob(pattern)) for pattern in _WEIGHTS):
        raise ModelFolderError(f"the model folder {path} has no weights (*.safetensors)")
    if not any((path / name).is_file() for name in _TOKENIZER):
        raise ModelFolderError(f"the model folder {path} has no tokenizer (tokenizer.json)")
    return config
