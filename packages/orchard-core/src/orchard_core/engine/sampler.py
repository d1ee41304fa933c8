"""Draws tokens and reports the log-probabilities of the very distribution they were drawn from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from orchard_core.engine.protocol import SamplingParams


def uniforms(seed: int) -> np.random.Generator:
    """The stream of uniform numbers that decides a request's tokens, one number a token."""
    return np.random.Generator(np.random.Philox(seed))


def truncated_logprobs(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Log-probabilities after temperature, top-k, then top-p, renormalised; shape as `logits` (rows, vocab).

    Removed tokens get -inf. Temperature 0 leaves all mass on the largest logit. Each row's result
    depends on that row alone.
    """
    rows = logits.float()
    greedy = [index for index, p in enumerate(params) if p.temperature <= 0]
    scale = torch.tensor([p.temperature if p.temperature > 0 else 1.0 for p in params])
    logprobs = torch.log_softmax(rows / scale[:, None], dim=-1)
    for index, p in enumerate(params):
        if index in greedy:
            logprobs[index] = _point_mass(rows[index])
        elif 0 < p.top_k < rows.shape[1] or p.top_p < 1:
            logprobs[index] = _truncate(logprobs[index], p)
    return logprobs


def draw(logprobs: Tensor, numbers: Sequence[float]) -> tuple[list[int], list[float]]:
    """One token a row by inverting the cumulative distribution at `numbers` (each in [0, 1))."""
    # softmax, not exp: it works row by row, where exp may treat the batch's last elements differently
    cumulative = torch.softmax(logprobs.double(), dim=-1).cumsum(dim=-1)
    targets = torch.tensor(numbers, dtype=torch.float64)[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, targets, right=True).clamp_(max=logprobs.shape[1] - 1)
    chosen = logprobs.gather(1, tokens)
    return tokens[:, 0].tolist(), chosen[:, 0].tolist()


def _point_mass(logits: Tensor) -> Tensor:
    result = torch.full_like(logits, -torch.inf)
    result[int(logits.argmax())] = 0.0
    return result


def _truncate(logprobs: Tensor, params: SamplingParams) -> Tensor:
    values, order = torch.sort(logprobs, descending=True, stable=True)
    if 0 < params.top_k < len(values):
        values[params.top_k :] = -torch.inf
        values -= torch.logsumexp(values, 0)
    if params.top_p < 1:
        mass_before = values.exp().cumsum(0) - values.exp()
        dropped = mass_before >= params.top_p
        dropped[0] = False
        values[dropped] = -torch.inf
        values -= torch.logsumexp(values, 0)
    return torch.empty_like(logprobs).scatter_(0, order, values)
