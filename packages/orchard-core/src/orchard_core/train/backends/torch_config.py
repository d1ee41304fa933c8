"""Settings of the torch backend and its learning-rate schedule."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from orchard_core.errors import UsageError
from orchard_core.train.losses import LossConfig


@dataclass(frozen=True, slots=True)
class TorchConfig:
    """How to optimise.

    `total_steps` is the length of the cosine (not needed for "constant"); the warm-up takes
    `warmup` of it, or that many steps if 1 or more. `tokens_per_row` bounds a micro-batch.
    `router_aux_coef` adds a Mixture-of-Experts balance loss, off by default. `threads` sets torch's
    threads for the whole process; None leaves them.
    """

    lr: float = 1e-5
    min_lr: float = 0.0
    schedule: Literal["constant", "cosine"] = "constant"
    total_steps: int = 0
    warmup: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    tokens_per_row: int = 4096
    router_aux_coef: float = 0.0
    device: str = "cpu"
    threads: int | None = None
    seed: int = 0
    loss: LossConfig = field(default_factory=LossConfig)

    def __post_init__(self) -> None:
        if self.schedule == "cosine" and self.total_steps < 1:
            raise UsageError("a cosine schedule needs total_steps")
        if 0 < self.warmup < 1 and self.total_steps < 1:
            raise UsageError("a warm-up given as a share needs total_steps")
        if self.tokens_per_row < 1:
            raise UsageError("tokens_per_row must be at least 1")


def learning_rate(config: TorchConfig, step: int) -> float:
    """The rate of the step with this number, counted from 0: linear warm-up, then the schedule."""
    share = 0 < config.warmup < 1
    warmup = math.ceil(config.warmup * config.total_steps) if share else int(config.warmup)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    if config.schedule == "constant":
        return config.lr
    done = min(1.0, (step - warmup) / max(1, config.total_steps - warmup))
    return config.min_lr + (config.lr - config.min_lr) * 0.5 * (1 + math.cos(math.pi * done))
