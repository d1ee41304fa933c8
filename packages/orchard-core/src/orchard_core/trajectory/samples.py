"""From recorded calls to training samples, token for token.

Every maximal chain of calls (root to leaf) becomes one sample. A token that several chains share is trained in
the first of them only, so that each sampled token is trained once or counted as dropped, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from orchard_core.trajectory.tree import CallTree, build_tree
from orchard_core.trajectory.types import ModelCall, Sample, SampleReport, Trajectory

NO_TOKEN_IDS = "no_token_ids"
"""Reason: neither the engine nor a renderer gave ids (counted by the reply's own usage)."""
EMPTY_COMPLETION = "empty_completion"
"""Reason: nothing was sampled (a full context); counts no tokens."""
TOO_LONG = "too_long"
"""Reason: beyond the longest allowed sample."""


def build_samples(
    source: Trajectory | Sequence[ModelCall],
    *,
    max_length: int | None = None,
    trajectory_id: str = "",
    task_id: str = "",
) -> SampleReport:
    """Build the samples of a trajectory, or of bare calls (with the ids given by keyword).

    Samples longer than `max_length` tokens are cut at the end; what is cut is counted, never an error.
    """
    if isinstance(source, Trajectory):
        calls, trajectory_id, task_id = source.calls, source.id, source.task_id
    else:
        calls = tuple(source)
    dropped: Counter[str] = Counter()
    kept = []
    for call in sorted(calls, key=lambda call: call.index):
        reason = _unusable(call)
        if reason is None:
            kept.append(call)
        else:
            dropped[reason] += _reported_tokens(call)
    tree = build_tree(kept)
    trained: set[int] = set()
    samples = []
    for leaf in tree.leaves:
        sample = _sample(kept, tree, leaf, trained, trajectory_id, task_id)
        cut = _cut(sample, max_length)
        lost = int(sample.mask.sum()) - int(cut.mask.sum())
        if lost:
            dropped[TOO_LONG] += lost
        if cut.mask.any():
            samples.append(cut)
    return SampleReport(
        samples=tuple(samples),
        merges=sum(parent is not None for parent in tree.parents),
        branches=max(0, len(tree.leaves) - 1),
        trained_tokens=sum(int(sample.mask.sum()) for sample in samples),
        dropped=dict(dropped),
    )


def _sample(
    calls: Sequence[ModelCall],
    tree: CallTree,
    leaf: int,
    trained: set[int],
    trajectory_id: str,
    task_id: str,
) -> Sample:
    ids = np.concatenate([calls[leaf].prompt_ids, calls[leaf].completion_ids]).astype(np.int32)
    mask = np.zeros(len(ids), dtype=np.bool_)
    logprobs = np.zeros(len(ids), dtype=np.float32)
    sampled_by = np.full(len(ids), -1, dtype=np.int32)
    own = []
    for at in tree.chain(leaf):
        call = calls[at]
        span = slice(len(call.prompt_ids), len(call.prompt_ids) + len(call.completion_ids))
        sampled_by[span] = call.index
        if call.logprobs is not None:
            logprobs[span] = call.logprobs
        if at not in trained:
            trained.add(at)
            mask[span] = True
            own.append(call)
    return Sample(
        trajectory_id=trajectory_id,
        task_id=task_id,
        ids=ids,
        mask=mask,
        logprobs=logprobs,
        calls=sampled_by,
        has_logprobs=all(call.logprobs is not None for call in own),
        weight_version=min(call.weight_version for call in own),
    )


def _cut(sample: Sample, max_length: int | None) -> Sample:
    if max_length is None or len(sample) <= max_length:
        return sample
    return Sample(
        trajectory_id=sample.trajectory_id,
        task_id=sample.task_id,
        ids=sample.ids[:max_length],
        mask=sample.mask[:max_length],
        logprobs=sample.logprobs[:max_length],
        calls=sample.calls[:max_length],
        has_logprobs=sample.has_logprobs,
        weight_version=sample.weight_version,
    )


def _unusable(call: ModelCall) -> str | None:
    if call.token_source == "none":
        return NO_TOKEN_IDS
    return None if len(call.completion_ids) else EMPTY_COMPLETION


def _reported_tokens(call: ModelCall) -> int:
    usage = call.response.get("usage")
    counted = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    return max(len(call.completion_ids), counted if isinstance(counted, int) else 0)
