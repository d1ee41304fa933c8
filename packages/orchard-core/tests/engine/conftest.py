"""One tiny model folder for the room's tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from orchard_core.engine.loading import ModelFolder, load_model_folder
from orchard_core.engine.tiny import make_tiny_model
from orchard_core.engine.torch_engine import TorchEngine

CORPUS = [
    f"def f{i}(x, y):\n    if x <= {i} and y == 3:\n        return x // 2\n    return y != x\n"
    f"sed -i '{i}s/<=/</' src/app.py && cat -n src/app.py | head\n"
    for i in range(60)
]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return make_tiny_model(folder, CORPUS, vocab_size=400, hidden=64, layers=2, heads=6, moe_intermediate=64)


@pytest.fixture(scope="session")
def folder(tiny_folder: Path) -> ModelFolder:
    return load_model_folder(tiny_folder)


@pytest.fixture
async def engine(tiny_folder: Path) -> AsyncIterator[TorchEngine]:
    engine = TorchEngine.load(tiny_folder, max_batch=4, max_context=512)
    yield engine
    await engine.close()
