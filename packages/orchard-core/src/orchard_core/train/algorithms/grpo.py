"""Group-relative policy gradient (GRPO; DeepSeekMath, arXiv 2402.03300; settings of arXiv 2605.15040)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchard_core.errors import UsageError
from orchard_core.train.batch import WeightedSample, Weights, trainable, zeros
from orchard_core.trajectory.types import Sample

Reference = Callable[[Sequence[Sample]], Sequence[NDArray[np.float32]]]
"""Log-probabilities of each sample's tokens under a frozen reference, each of shape (T,)."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A selected rollout: its reward and the samples that its calls were built into."""

    reward: float
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class GrpoConfig:
    """`kl_coef` above 0 needs a reference. `ddof` 1 divides the variance by n - 1, as torch does."""

    entropy_coef: float = 1e-4
    kl_coef: float = 0.0
    ddof: int = 1
    epsilon: float = 1e-6


def advantages(rewards: Sequence[float], ddof: int = 1, epsilon: float = 1e-6) -> NDArray[np.float64]:
    """(r - mean) / (std + epsilon) within one group; 0 for a group of one, whose std is undefined."""
    values = np.asarray(rewards, dtype=np.float64)
    if len(values) <= ddof:
        return np.zeros(len(values))
    centred: NDArray[np.float64] = values - values.mean()
    return centred / float(values.std(ddof=ddof) + epsilon)


def grpo(
    groups: Sequence[Sequence[Rollout]],
    config: GrpoConfig | None = None,
    reference: Reference | None = None,
) -> list[WeightedSample]:
    """Weights for one batch of groups, each holding the selected rollouts of one prompt.

    A rollout's tokens are averaged over all its samples together, then rollouts are averaged over
    the batch: a rollout that branched into several samples counts once.
    """
    config = config or GrpoConfig()
    if config.kl_coef and reference is None:
        raise UsageError("kl_coef is set but no reference model is given")
    count = sum(_tokens(rollout) > 0 for group in groups for rollout in group)
    weighted: list[WeightedSample] = []
    for group in groups:
        gains = advantages([rollout.reward for rollout in group], config.ddof, config.epsilon)
        for rollout, advantage in zip(group, gains, strict=True):
            share = 1 / max(_tokens(rollout) * count, 1)
            references = (
                reference(rollout.samples) if config.kl_coef and reference else [None] * len(rollout.samples)
            )
            for sample, ref in zip(rollout.samples, references, strict=True):
                weighted.append(_weigh(sample, float(advantage), share, config, ref))
    return weighted


def _tokens(rollout: Rollout) -> int:
    return sum(int(trainable(sample).sum()) for sample in rollout.samples)


def _weigh(
    sample: Sample, advantage: float, share: float, config: GrpoConfig, ref: NDArray[np.float32] | None
) -> WeightedSample:
    mask = trainable(sample)

    def spread(value: float) -> Weights:
        return np.where(mask, np.float32(value), np.float32(0)).astype(np.float32)

    return WeightedSample(
        sample,
        w_pg=spread(advantage * share),
        w_ce=zeros(sample),
        w_kd=spread(config.kl_coef * share),
        ref_logprobs=ref,
        w_entropy=spread(config.entropy_coef * share) if config.entropy_coef else None,
    )
