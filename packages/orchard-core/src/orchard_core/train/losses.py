"""The one loss: sum over tokens of w_pg * pg + w_ce * ce + w_kd * kd - w_entropy * entropy.

Policy gradient: the token-level clipped surrogate of PPO (arXiv 1707.06347) with the asymmetric
bounds of DAPO (arXiv 2503.14476). Divergence: the k3 estimator (J. Schulman, "Approximating KL
divergence", 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from orchard_core.train.batch import WeightedSample
from orchard_core.train.packing import Row

_MAX_LOG_RATIO = 20.0  # exp(20) is far beyond any clip bound and still finite in float32


@dataclass(frozen=True, slots=True)
class LossConfig:
    """`temperature` must be the one the rollouts were sampled with, for the ratio to start at 1.

    Ratios are taken against the recorded behaviour log-probabilities; truncated sampling (top-p,
    top-k) renormalises those, which the trainer does not undo.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class Targets:
    """The K weighted tokens of a row; every tensor has shape (K,).

    `before` is the position in the row whose logits predict the token; `token` is its id.
    """

    before: Tensor
    token: Tensor
    w_pg: Tensor
    w_ce: Tensor
    w_kd: Tensor
    w_entropy: Tensor
    behaviour: Tensor
    reference: Tensor


def targets_of(row: Row, batch: Sequence[WeightedSample], device: torch.device) -> Targets:
    """Collect the weighted tokens of a row in the order of the row."""
    columns: dict[str, list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]] = {}

    def add(name: str, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> None:
        columns.setdefault(name, []).append(array)

    for start, member in zip(row.bounds, row.members, strict=False):
        item = batch[member]
        used = np.flatnonzero(item.used)
        blank = np.zeros(len(used), dtype=np.float32)
        add("before", used + (start - 1))
        add("token", item.sample.ids[used].astype(np.int64))
        add("w_pg", item.w_pg[used])
        add("w_ce", item.w_ce[used])
        add("w_kd", item.w_kd[used])
        add("w_entropy", blank if item.w_entropy is None else item.w_entropy[used])
        add("behaviour", item.sample.logprobs[used].astype(np.float32))
        add("reference", blank if item.ref_logprobs is None else item.ref_logprobs[used].astype(np.float32))
    return Targets(
        **{name: torch.from_numpy(np.concatenate(parts)).to(device) for name, parts in columns.items()}
    )


def policy_gradient(ratio: Tensor, weight: Tensor, config: LossConfig) -> Tensor:
    """-min(ratio * w, clip(ratio) * w), shape (K,); w carries the advantage's sign, so the minimum
    is the pessimistic one for gains and losses alike."""
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    return -torch.minimum(ratio * weight, clipped * weight)


def k3(logprob: Tensor, reference: Tensor) -> Tensor:
    """exp(-d) - 1 + d with d = log p - log q: unbiased for KL(p || q) under p, never negative."""
    gap = (logprob - reference).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return torch.exp(-gap) - 1 + gap


@dataclass
class LossStats:
    """Sums over tokens, added up over micro-batches. `summary` turns them into metrics."""

    loss: float = 0.0
    tokens: int = 0
    ce_sum: float = 0.0
    ce_tokens: int = 0
    entropy_sum: float = 0.0
    pg_tokens: int = 0
    ratio_sum: float = 0.0
    ratio_min: float = field(default=float("inf"))
    ratio_max: float = 0.0
    clipped: int = 0
    far: int = 0
    behaviour_k3_sum: float = 0.0
    kd_sum: float = 0.0
    kd_tokens: int = 0

    def summary(self) -> dict[str, float]:
        """Metrics of the whole batch; those of absent terms are left out."""
        metrics = {"loss": self.loss, "tokens": float(self.tokens)}
        if self.tokens:
            metrics["entropy"] = self.entropy_sum / self.tokens
        if self.ce_tokens:
            metrics["ce"] = self.ce_sum / self.ce_tokens
        if self.pg_tokens:
            metrics["ratio_mean"] = self.ratio_sum / self.pg_tokens
            metrics["ratio_min"] = self.ratio_min
            metrics["ratio_max"] = self.ratio_max
            metrics["clip_fraction"] = self.clipped / self.pg_tokens
            metrics["ratio_outside_0.9_1.1"] = self.far / self.pg_tokens
            metrics["behaviour_kl"] = self.behaviour_k3_sum / self.pg_tokens
        if self.kd_tokens:
            metrics["kd"] = self.kd_sum / self.kd_tokens
        return metrics


def weighted_loss(logits: Tensor, targets: Targets, config: LossConfig, stats: LossStats) -> Tensor:
    """The loss of the K tokens whose logits (K, V) are given; adds what happened to `stats`."""
    scaled = logits.float() / config.temperature
    logps = torch.log_softmax(scaled, dim=-1)
    chosen = logps.gather(1, targets.token[:, None])[:, 0]
    with torch.set_grad_enabled(torch.is_grad_enabled() and bool(targets.w_entropy.any())):
        entropy = -(logps.exp() * logps).sum(dim=-1)
    ratio = torch.exp((chosen - targets.behaviour).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO))
    has_pg, has_kd = targets.w_pg != 0, targets.w_kd != 0
    # Terms without weight are cut out, not multiplied by zero: their inputs may be meaningless.
    terms = -(targets.w_ce * chosen) - targets.w_entropy * entropy
    loss = terms.sum() + policy_gradient(ratio[has_pg], targets.w_pg[has_pg], config).sum()
    loss = loss + (targets.w_kd[has_kd] * k3(chosen[has_kd], targets.reference[has_kd])).sum()
    _record(stats, loss.detach(), chosen.detach(), ratio.detach(), entropy.detach(), targets, config)
    return loss


def _record(
    stats: LossStats,
    loss: Tensor,
    chosen: Tensor,
    ratio: Tensor,
    entropy: Tensor,
    targets: Targets,
    config: LossConfig,
) -> None:
    stats.loss += float(loss)
    stats.tokens += len(chosen)
    stats.entropy_sum += float(entropy.sum())
    has_ce, has_pg, has_kd = targets.w_ce != 0, targets.w_pg != 0, targets.w_kd != 0
    stats.ce_tokens += int(has_ce.sum())
    stats.ce_sum -= float(chosen[has_ce].sum())
    stats.kd_tokens += int(has_kd.sum())
    stats.kd_sum += float(k3(chosen[has_kd], targets.reference[has_kd]).sum())
    if not has_pg.any():
        return
    used, weight = ratio[has_pg], targets.w_pg[has_pg]
    stats.pg_tokens += len(used)
    stats.ratio_sum += float(used.sum())
    stats.ratio_min = min(stats.ratio_min, float(used.min()))
    stats.ratio_max = max(stats.ratio_max, float(used.max()))
    cut = ((used > 1 + config.clip_high) & (weight > 0)) | ((used < 1 - config.clip_low) & (weight < 0))
    stats.clipped += int(cut.sum())
    stats.far += int(((used < 0.9) | (used > 1.1)).sum())
    # k3 for KL(behaviour || policy): samples come from the behaviour policy.
    stats.behaviour_k3_sum += float(k3(targets.behaviour[has_pg], chosen[has_pg]).sum())
