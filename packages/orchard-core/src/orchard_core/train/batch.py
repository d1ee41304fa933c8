"""WeightedSample: a token sequence together with how much each token counts in each loss term."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchard_core.errors import UsageError
from orchard_core.trajectory.types import Sample

Weights = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class WeightedSample:
    """A sample with per-token weights, each float32 of shape (T,).

    The batch's loss is the plain sum of weight x term over all tokens, so the weights carry signs,
    advantages and normalisation alike:

    - `w_pg`: policy gradient; the advantage times the token's share of the batch.
    - `w_ce`: cross entropy.
    - `w_kd`: divergence from `ref_logprobs`, which it therefore needs.
    - `w_entropy`: bonus for the entropy of the token's distribution, None for none.

    The weight at position t belongs to predicting `ids[t]`; position 0 is predicted from nothing
    and has weight 0. `ref_logprobs[t]` is the log-probability of `ids[t]` under the reference.
    """

    sample: Sample
    w_pg: Weights
    w_ce: Weights
    w_kd: Weights
    ref_logprobs: NDArray[np.float32] | None = None
    w_entropy: Weights | None = None

    def __post_init__(self) -> None:
        for name in ("w_pg", "w_ce", "w_kd", "w_entropy", "ref_logprobs"):
            array = getattr(self, name)
            if array is not None and array.shape != (len(self.sample),):
                raise UsageError(f"{name} has shape {array.shape}, the sample has {len(self.sample)} tokens")
        if self.used[:1].any():
            raise UsageError("the first token is predicted from nothing and can carry no weight")
        if self.w_kd.any() and self.ref_logprobs is None:
            raise UsageError("w_kd needs ref_logprobs: the reference's log-probability of every token")
        if self.w_pg.any() and not self.sample.has_logprobs:
            raise UsageError(
                f"sample of trajectory {self.sample.trajectory_id!r} has no behaviour log-probabilities; "
                "policy gradients need rollouts whose engine reports them"
            )

    @property
    def used(self) -> NDArray[np.bool_]:
        """Positions with any weight, shape (T,)."""
        used: NDArray[np.bool_] = (self.w_pg != 0) | (self.w_ce != 0) | (self.w_kd != 0)
        return used if self.w_entropy is None else used | (self.w_entropy != 0)


def zeros(sample: Sample) -> Weights:
    """No weight anywhere, shape (T,)."""
    return np.zeros(len(sample), dtype=np.float32)


def trainable(sample: Sample) -> NDArray[np.bool_]:
    """The sampled positions that can be predicted: `mask` without position 0."""
    mask = sample.mask.copy()
    mask[:1] = False
    return mask
