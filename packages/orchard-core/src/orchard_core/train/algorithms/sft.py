"""Supervised fine-tuning: cross entropy on the sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from orchard_core.train.batch import WeightedSample, trainable, zeros
from orchard_core.trajectory.types import Sample

Normalise = Literal["token", "sample"]


def sft(samples: Sequence[Sample], normalise: Normalise = "token") -> list[WeightedSample]:
    """Weights for one batch. "token": every token counts the same; "sample": every sample does."""
    masks = [trainable(sample) for sample in samples]
    counts = [int(mask.sum()) for mask in masks]
    total, filled = sum(counts), sum(count > 0 for count in counts)
    weighted = []
    for sample, mask, count in zip(samples, masks, counts, strict=True):
        share = 1 / max(total, 1) if normalise == "token" else 1 / max(count * filled, 1)
        w_ce = np.where(mask, np.float32(share), np.float32(0)).astype(np.float32)
        weighted.append(WeightedSample(sample, zeros(sample), w_ce, zeros(sample)))
    return weighted
