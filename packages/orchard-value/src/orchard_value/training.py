"""Training a value model on trajectories that were stored with their verdicts."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits

from orchard_core.errors import UsageError
from orchard_core.train.backends.torch_config import TorchConfig, learning_rate
from orchard_core.train.errors import DivergedError
from orchard_core.trajectory.types import Trajectory
from orchard_value.metrics import auc, brier
from orchard_value.model import Pooling, ValueModel
from orchard_value.sequences import check_no_leakage, labels, split_by_origin, token_sequence, usable

log = logging.getLogger(__name__)

Progress = Callable[[int, int, dict[str, float]], None]
"""Called after each step with steps done, steps in all, and the step's metrics."""


@dataclass(frozen=True, slots=True)
class ValueConfig:
    """`validation` is the share of packages (or tasks, where none is named) held back to choose the
    best epoch by binary cross entropy; 0 keeps the last epoch. `threads` None leaves torch's."""

    epochs: int = 3
    batch_size: int = 16
    lr: float = 3e-4
    warmup: float = 0.1
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    pooling: Pooling = "last"
    max_tokens: int = 4096
    tokens_per_row: int = 8192
    validation: float = 0.15
    seed: int = 0
    threads: int | None = None


def train_value(
    model_folder: Path,
    trajectories: Sequence[Trajectory],
    config: ValueConfig,
    output: Path,
    held_out: Sequence[Trajectory] = (),
    on_progress: Progress | None = None,
) -> Path:
    """Train by binary cross entropy on success and write the best epoch to `output`; returns it.

    `held_out` is what the model will be judged on: it is not read, only checked. Raises
    LeakageError when a task or package of it is also trained on, UsageError when the trajectories
    with a verdict do not hold both successes and failures.
    """
    check_no_leakage(trajectories, held_out)
    known = usable(trajectories)
    train, validation = split_by_origin(known, config.validation, config.seed)
    if len(set(labels(train).tolist())) < 2:
        raise UsageError(
            f"{len(train)} of {len(trajectories)} trajectories can be trained on and all ended the same way; "
            "a value model needs successes and failures"
        )
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    model = ValueModel(model_folder, config.pooling, config.max_tokens)
    _Run(model, train, validation, config, on_progress).fit()
    return model.save(output)


class _Run:
    def __init__(
        self,
        model: ValueModel,
        train: Sequence[Trajectory],
        validation: Sequence[Trajectory],
        config: ValueConfig,
        on_progress: Progress | None,
    ) -> None:
        self.model, self.config, self.on_progress = model, config, on_progress
        self.sequences = [token_sequence(t) for t in train]
        self.labels = labels(train)
        self.validation = list(validation)
        # The language model's own output head is not trained; it may be tied to the embedding.
        self.parameters = [*model.language_model.base_model.parameters(), *model.head.parameters()]
        self.optimiser = torch.optim.AdamW(self.parameters, lr=config.lr, weight_decay=config.weight_decay)
        self.steps_per_epoch = -(-len(train) // config.batch_size)
        total = self.steps_per_epoch * config.epochs
        self.schedule = TorchConfig(lr=config.lr, schedule="cosine", total_steps=total, warmup=config.warmup)

    def fit(self) -> None:
        """All epochs; leaves the model at the best one."""
        best, best_loss = None, float("inf")
        for epoch in range(self.config.epochs):
            self._epoch(epoch)
            loss = self._validate(epoch)
            if loss is not None and loss < best_loss:
                best, best_loss = copy.deepcopy(self.model.state_dict()), loss
        if best is not None:
            self.model.load_state_dict(best)

    def _epoch(self, epoch: int) -> None:
        self.model.train()
        order = np.random.default_rng([self.config.seed, epoch]).permutation(len(self.sequences))
        for place in range(self.steps_per_epoch):
            step = epoch * self.steps_per_epoch + place
            batch = order[place * self.config.batch_size : (place + 1) * self.config.batch_size]
            metrics = self._step(step, batch)
            if self.on_progress is not None:
                self.on_progress(step + 1, self.schedule.total_steps, metrics)

    def _step(self, step: int, batch: NDArray[np.int64]) -> dict[str, float]:
        rate = learning_rate(self.schedule, step)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        logits = self.model.logits([self.sequences[i] for i in batch], self.config.tokens_per_row)
        loss = binary_cross_entropy_with_logits(logits, torch.from_numpy(self.labels[batch]))
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.config.grad_clip))
        if not np.isfinite(norm):
            raise DivergedError(
                f"the value model's gradient of step {step} is not finite; lower the learning rate"
            )
        self.optimiser.step()
        return {"loss": float(loss.detach()), "lr": rate, "grad_norm": norm}

    def _validate(self, epoch: int) -> float | None:
        if not self.validation:
            return None
        scores = np.clip(self.model.score(self.validation, self.config.tokens_per_row), 1e-7, 1 - 1e-7)
        truth = labels(self.validation)
        loss = float(-np.mean(truth * np.log(scores) + (1 - truth) * np.log(1 - scores)))
        log.info(
            "epoch %d: validation bce %.4f auc %.3f brier %.4f",
            epoch,
            loss,
            auc(scores, truth),
            brier(scores, truth),
        )
        return loss
