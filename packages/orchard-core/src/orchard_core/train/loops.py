"""The loops of training: SFT over a fixed set of samples, and one step of reinforcement learning."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from orchard_core.errors import UsageError
from orchard_core.train.algorithms.grpo import GrpoConfig, Reference, Rollout, grpo
from orchard_core.train.algorithms.sft import sft
from orchard_core.train.backends.protocol import TrainerBackend
from orchard_core.train.batch import WeightedSample, trainable
from orchard_core.train.errors import CheckpointError
from orchard_core.train.folders import keep_newest, step_folder, step_folders
from orchard_core.trajectory.types import Sample

Weigh = Callable[[Sequence[Sample]], Sequence[WeightedSample]]
Progress = Callable[[int, int, dict[str, float]], None]
"""Called after each step with steps done, steps in all, and the step's metrics."""


class MetricsSink(Protocol):
    """Where metrics go; `MetricsLogger` is one."""

    def log(self, step: int, metrics: dict[str, float], prefix: str = "") -> None: ...


@dataclass(frozen=True, slots=True)
class SftConfig:
    """`batch_samples` samples make one optimiser step; `checkpoint_every` steps make a checkpoint,
    of which the newest `keep_checkpoints` stay."""

    epochs: int = 1
    batch_samples: int = 16
    seed: int = 0
    checkpoint_every: int = 50
    keep_checkpoints: int = 1


def sft_steps(samples: int, config: SftConfig) -> int:
    """Optimiser steps of a whole run: what a cosine schedule needs to know."""
    return math.ceil(samples / config.batch_samples) * config.epochs


def run_sft(
    backend: TrainerBackend,
    samples: Sequence[Sample],
    config: SftConfig,
    metrics: MetricsSink | None = None,
    on_progress: Progress | None = None,
    checkpoint_dir: Path | None = None,
    weigh: Weigh = sft,
) -> int:
    """Train for `config.epochs` passes, each in its own seeded order; returns the steps in all.

    With a `checkpoint_dir` the run continues from the newest checkpoint there (also after it is
    complete: then nothing is trained). The order depends on seed and epoch alone, so a resumed run
    is bit for bit the uninterrupted one. Raises CheckpointError where the checkpoint is of other
    samples or settings, UsageError where there is nothing to train on.
    """
    samples = [sample for sample in samples if trainable(sample).any()]
    if not samples:
        raise UsageError("no sample has a trainable token; record or select trajectories first")
    total = sft_steps(len(samples), config)
    mark = _fingerprint(samples, config)
    if checkpoint_dir is not None:
        resume_sft(backend, checkpoint_dir, mark)
    first = backend.steps_done
    for step in range(first, total):
        batch = [samples[index] for index in _batch_indices(len(samples), step, config)]
        result = backend.step(weigh(batch)) | {"epoch": step * config.epochs / total}
        if metrics is not None:
            metrics.log(step + 1, result)
        if on_progress is not None:
            on_progress(step + 1, total, result)
        last = step + 1 == total
        if checkpoint_dir is not None and (last or (step + 1) % config.checkpoint_every == 0):
            backend.save_checkpoint(step_folder(checkpoint_dir, step + 1), {"fingerprint": mark})
            keep_newest(checkpoint_dir, config.keep_checkpoints)
    return total


def resume_sft(backend: TrainerBackend, checkpoint_dir: Path, fingerprint: str) -> None:
    """Load the newest checkpoint into the backend, if there is one."""
    found = step_folders(checkpoint_dir)
    if not found:
        return
    extra = backend.load_checkpoint(found[-1])
    if extra.get("fingerprint") != fingerprint:
        raise CheckpointError(
            f"the checkpoint in {found[-1]} was made with other samples or settings; "
            "remove it or choose another folder"
        )


def last_checkpoint_step(checkpoint_dir: Path) -> int | None:
    """The step that a run would resume from, for `MetricsLogger(resume_step=...)`."""
    found = step_folders(checkpoint_dir)
    return int(found[-1].name.rpartition("-")[2]) if found else None


@dataclass(frozen=True, slots=True)
class RlConfig:
    """`passes` over the groups of a step, each cut into `mini_batches` optimiser steps of whole groups."""

    grpo: GrpoConfig = field(default_factory=GrpoConfig)
    passes: int = 1
    mini_batches: int = 1


def rl_step(
    backend: TrainerBackend,
    groups: Sequence[Sequence[Rollout]],
    config: RlConfig | None = None,
    reference: Reference | None = None,
) -> dict[str, float]:
    """Train on the selected rollouts of some prompts; returns metrics averaged over its optimiser steps.

    Groups must have passed the dynamic filter; raises UsageError when none is given.
    """
    config = config or RlConfig()
    groups = [group for group in groups if any(trainable(s).any() for r in group for s in r.samples)]
    if not groups:
        raise UsageError("no group has a trainable token; draw more prompts before the step")
    parts = np.array_split(np.arange(len(groups)), min(config.mini_batches, len(groups)))
    results: list[dict[str, float]] = []
    for _ in range(config.passes):
        for part in parts:
            weighted = grpo([groups[index] for index in part], config.grpo, reference)
            if any(item.used.any() for item in weighted):
                results.append(backend.step(weighted))
    if not results:
        raise UsageError("every group's advantages are zero; filter groups before the step")
    names = set.intersection(*(set(result) for result in results))
    metrics = {name: float(np.mean([result[name] for result in results])) for name in sorted(names)}
    rollouts = [rollout for group in groups for rollout in group]
    metrics["reward_mean"] = float(np.mean([rollout.reward for rollout in rollouts]))
    metrics["positive_share"] = float(np.mean([rollout.reward > 0 for rollout in rollouts]))
    return metrics | {
        "groups": float(len(groups)),
        "rollouts": float(len(rollouts)),
        "updates": float(len(results)),
    }


def _batch_indices(count: int, step: int, config: SftConfig) -> list[int]:
    per_epoch = math.ceil(count / config.batch_samples)
    epoch, place = divmod(step, per_epoch)
    order = np.random.default_rng([config.seed, epoch]).permutation(count)
    return [int(index) for index in order[place * config.batch_samples : (place + 1) * config.batch_samples]]


def _fingerprint(samples: Sequence[Sample], config: SftConfig) -> str:
    digest = hashlib.sha256(repr((config.epochs, config.batch_samples, config.seed)).encode())
    for sample in samples:
        digest.update(np.int64(len(sample)).tobytes() + sample.ids.tobytes() + sample.mask.tobytes())
    return digest.hexdigest()
