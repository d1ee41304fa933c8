"""Plain next-token training: all tokens of a sample count, those of the answers more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from orchard_core.train.batch import WeightedSample, zeros
from orchard_core.trajectory.types import Sample


def next_token(samples: Sequence[Sample], prompt_weight: float) -> list[WeightedSample]:
    """The mean cross entropy of the masked tokens plus `prompt_weight` times that of all others.

    The first token of a sequence has nothing before it and is never trained.
    """
    answers = [sample.mask & (np.arange(len(sample)) > 0) for sample in samples]
    others = [~sample.mask & (np.arange(len(sample)) > 0) for sample in samples]
    answer_count = max(1, sum(int(mask.sum()) for mask in answers))
    other_count = max(1, sum(int(mask.sum()) for mask in others))
    weighted = []
    for sample, answer, other in zip(samples, answers, others, strict=True):
        weights = answer / answer_count + other * (prompt_weight / other_count)
        whole = replace(sample, mask=answer | other)
        weighted.append(
            WeightedSample(whole, w_pg=zeros(sample), w_ce=weights.astype(np.float32), w_kd=zeros(sample))
        )
    return weighted
