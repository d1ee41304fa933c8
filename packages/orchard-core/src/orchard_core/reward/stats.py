"""Confidence intervals for success rates measured over tasks.

Several rollouts of one task are not independent, so intervals resample tasks, never rollouts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from orchard_core.errors import UsageError

RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its interval [low, high]; `n` counts independent units (tasks or trials)."""

    mean: float
    low: float
    high: float
    n: int

    def apart_from(self, other: Interval) -> bool:
        """Whether the two intervals do not touch."""
        return self.low > other.high or self.high < other.low


def wilson(k: int, n: int, level: float = 0.95) -> Interval:
    """Wilson's score interval for k successes in n independent trials (Wilson, 1927)."""
    if not 0 <= k <= n or n < 1:
        raise UsageError(f"an interval needs 0 <= successes <= trials and at least one trial, not {k} of {n}")
    z = NormalDist().inv_cdf(0.5 + level / 2)
    rate = k / n
    scale = 1 + z * z / n
    centre = (rate + z * z / (2 * n)) / scale
    half = z / scale * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    low = 0.0 if k == 0 else max(0.0, centre - half)
    high = 1.0 if k == n else min(1.0, centre + half)
    return Interval(rate, low, high, n)


def mean_ci(values_by_task: Mapping[str, Sequence[float]], seed: int = 0, level: float = 0.95) -> Interval:
    """The mean over tasks of each task's mean value, with a cluster bootstrap interval over tasks.

    Where every task has the same mean of exactly 0 or 1 the bootstrap sees no spread at all;
    Wilson's interval over the number of tasks is given instead.
    """
    means = _task_means(values_by_task)
    mean = float(means.mean())
    if np.all(means == 0.0) or np.all(means == 1.0):
        return wilson(int(means.sum()), len(means), level)
    low, high = _bootstrap(means, seed, level)
    return Interval(mean, low, high, len(means))


def paired_diff_ci(
    a_by_task: Mapping[str, Sequence[float]],
    b_by_task: Mapping[str, Sequence[float]],
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """The mean over tasks of (b - a), tasks resampled in pairs. Both need the same tasks."""
    if a_by_task.keys() != b_by_task.keys():
        odd = sorted(a_by_task.keys() ^ b_by_task.keys())
        raise UsageError(
            f"a paired difference needs the same tasks on both sides; {len(odd)} differ, such as {odd[0]!r}"
        )
    differences = _task_means({task: b_by_task[task] for task in a_by_task}) - _task_means(a_by_task)
    low, high = _bootstrap(differences, seed, level)
    return Interval(float(differences.mean()), low, high, len(differences))


def pass_at_k(n: int, c: int, k: int) -> float:
    """The unbiased estimate of P(at least one of k succeeds) from c successes in n (Chen et al., 2021)."""
    if not (0 <= c <= n and 1 <= k <= n):
        raise UsageError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, not n {n}, c {c}, k {k}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def _task_means(values_by_task: Mapping[str, Sequence[float]]) -> NDArray[np.float64]:
    if not values_by_task:
        raise UsageError("an interval needs at least one task")
    empty = [task for task, values in values_by_task.items() if len(values) == 0]
    if empty:
        raise UsageError(f"task {empty[0]!r} has no values")
    return np.array([np.mean(np.asarray(values, dtype=np.float64)) for values in values_by_task.values()])


def _bootstrap(values: NDArray[np.float64], seed: int, level: float) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    means = np.empty(RESAMPLES)
    # In slices, so that many tasks do not need a resamples x tasks table at once.
    step = max(1, 2_000_000 // len(values))
    for start in range(0, RESAMPLES, step):
        stop = min(start + step, RESAMPLES)
        picks = rng.integers(0, len(values), size=(stop - start, len(values)))
        means[start:stop] = values[picks].mean(axis=1)
    tail = (1 - level) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
