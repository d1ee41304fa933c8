"""Model folders of a run: the base model is made or named once, each training stage leaves one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from orchard_core.domain import Domain, Task
from orchard_core.engine.tiny import make_tiny_model
from orchard_core.errors import UsageError
from orchard_core.pipeline.capabilities import HasCorpus
from orchard_core.recipe import BASE, ModelConfig
from orchard_core.train.folders import atomic_folder


def base_folder(model: ModelConfig, models: Path) -> Path:
    """Where the untrained model lies: the recipe's folder, or one made for this run."""
    return Path(model.folder) if model.folder else models / BASE


def make_base(model: ModelConfig, models: Path, domain: Domain, tasks: Sequence[Task], seed: int) -> Path:
    """Make the recipe's tiny model if it is not there yet; returns its folder."""
    folder = base_folder(model, models)
    if model.tiny is None or (folder / "config.json").exists():
        return folder
    with atomic_folder(folder) as draft:
        make_tiny_model(draft, corpus(domain, tasks, seed), seed=seed, **model.tiny.model_dump())
    return folder


def corpus(domain: Domain, tasks: Sequence[Task], seed: int) -> Iterable[str]:
    """Text for the tokenizer: the domain's own corpus, else the instructions of its training tasks."""
    if any(task.split != "train" for task in tasks):
        raise UsageError("the tokenizer must be trained on training tasks only")
    if isinstance(domain, HasCorpus):
        return domain.corpus(tasks, seed)
    return [task.instruction for task in tasks]
