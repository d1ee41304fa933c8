"""How good scores are: ranking, calibration, and what selection by them gains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orchard_core.errors import UsageError
from orchard_core.reward.stats import Interval, mean_ci, paired_diff_ci


def auc(scores: ArrayLike, successes: ArrayLike) -> float:
    """P(a success scores above a failure), ties half; nan without both kinds."""
    values, truth = np.asarray(scores, dtype=np.float64), np.asarray(successes, dtype=bool)
    good, bad = np.sort(values[truth]), np.sort(values[~truth])
    if not len(good) or not len(bad):
        return float("nan")
    below = np.searchsorted(bad, good, side="left").sum()
    equal = (np.searchsorted(bad, good, side="right") - np.searchsorted(bad, good, side="left")).sum()
    return float((below + 0.5 * equal) / (len(good) * len(bad)))


def brier(scores: ArrayLike, successes: ArrayLike) -> float:
    """Mean squared error of probabilities (Brier, 1950); 0 is perfect."""
    return float(
        np.mean((np.asarray(scores, dtype=np.float64) - np.asarray(successes, dtype=np.float64)) ** 2)
    )


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Scores in [low, high) (the last bin closed): how many, their mean, and how many came true."""

    low: float
    high: float
    count: int
    mean_score: float
    success_rate: float


def calibration(scores: ArrayLike, successes: ArrayLike, bins: int = 10) -> list[CalibrationBin]:
    """Predicted against actual success in equally wide bins; empty bins are left out."""
    values, truth = np.asarray(scores, dtype=np.float64), np.asarray(successes, dtype=np.float64)
    places = np.minimum((values * bins).astype(int), bins - 1)
    return [
        CalibrationBin(
            place / bins,
            (place + 1) / bins,
            int((places == place).sum()),
            float(values[places == place].mean()),
            float(truth[places == place].mean()),
        )
        for place in range(bins)
        if (places == place).any()
    ]


def calibration_error(bins: Sequence[CalibrationBin]) -> float:
    """Expected calibration error: the bins' gaps, weighted by their counts."""
    total = sum(b.count for b in bins)
    return sum(b.count * abs(b.mean_score - b.success_rate) for b in bins) / total if total else float("nan")


def select_best(scores: ArrayLike, groups: Sequence[str]) -> dict[str, int]:
    """For each group (task) the index of its best-scored candidate; of equals the first."""
    values = np.asarray(scores, dtype=np.float64)
    if len(values) != len(groups):
        raise UsageError(f"{len(values)} scores for {len(groups)} candidates")
    best: dict[str, int] = {}
    for index, group in enumerate(groups):
        if group not in best or values[index] > values[best[group]]:
            best[group] = index
    return best


@dataclass(frozen=True, slots=True)
class SelectionReport:
    """Selection of one of n candidates a task. Intervals resample tasks; `gain` (selected@n minus
    pass@1) is paired by task. `pass_at_1` averages over the n candidates; `oracle` is pass@n."""

    n: int
    pass_at_1: Interval
    selected: Interval
    oracle: Interval
    gain: Interval
    auc: float
    within_task_auc: float
    brier: float
    calibration_error: float


def selection_report(
    scores: ArrayLike, successes: ArrayLike, tasks: Sequence[str], n: int, seed: int = 0
) -> SelectionReport:
    """What picking by score gains over each task's first n candidates.

    Raises UsageError when a task has fewer than n: a smaller choice would flatter the rest.
    """
    values, truth = np.asarray(scores, dtype=np.float64), np.asarray(successes, dtype=np.float64)
    members = _first(tasks, n)
    if len(values) != len(tasks) or len(truth) != len(tasks):
        raise UsageError("scores, successes and tasks must have one entry a candidate")
    each = {task: truth[places].tolist() for task, places in members.items()}
    picked = {
        task: [float(truth[places[int(np.argmax(values[places]))]])] for task, places in members.items()
    }
    used = np.concatenate(list(members.values()))
    inner = [auc(values[places], truth[places]) for places in members.values()]
    inner = [value for value in inner if not np.isnan(value)]
    return SelectionReport(
        n=n,
        pass_at_1=mean_ci(each, seed),
        selected=mean_ci(picked, seed),
        oracle=mean_ci({task: [max(results)] for task, results in each.items()}, seed),
        gain=paired_diff_ci(each, picked, seed),
        auc=auc(values[used], truth[used]),
        within_task_auc=float(np.mean(inner)) if inner else float("nan"),
        brier=brier(values[used], truth[used]),
        calibration_error=calibration_error(calibration(values[used], truth[used])),
    )


def _first(tasks: Sequence[str], n: int) -> Mapping[str, NDArray[np.int64]]:
    places: dict[str, list[int]] = {}
    for index, task in enumerate(tasks):
        places.setdefault(task, []).append(index)
    short = [task for task, found in places.items() if len(found) < n]
    if short or not places:
        named = f"task {short[0]!r} has {len(places[short[0]])}" if short else "there is none"
        raise UsageError(f"selection at {n} needs {n} candidates a task, but {named}")
    return {task: np.array(found[:n], dtype=np.int64) for task, found in places.items()}
