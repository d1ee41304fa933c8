"""Ranking, calibration and selection metrics."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard_core.errors import UsageError
from orchard_value.metrics import auc, brier, calibration, calibration_error, select_best, selection_report


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=20))
def test_auc_is_the_share_of_pairs_in_the_right_order(items: list[tuple[int, bool]]) -> None:
    good = [s for s, y in items if y]
    bad = [s for s, y in items if not y]
    value = auc([s for s, _ in items], [y for _, y in items])
    if not good or not bad:
        assert np.isnan(value)
        return
    pairs = [1.0 if g > b else 0.5 if g == b else 0.0 for g in good for b in bad]
    assert value == pytest.approx(float(np.mean(pairs)))


def test_brier_and_calibration_of_known_scores() -> None:
    assert brier([1.0, 0.0, 0.5], [1, 0, 1]) == pytest.approx(0.25 / 3)
    bins = calibration([0.05, 0.06, 0.95, 1.0], [0, 1, 1, 1], bins=10)
    assert [(b.low, b.count, b.success_rate) for b in bins] == [(0.0, 2, 0.5), (0.9, 2, 1.0)]
    assert calibration_error(bins) == pytest.approx((2 * (0.5 - 0.055) + 2 * (1 - 0.975)) / 4)


def test_the_best_candidate_of_each_task_is_taken_and_ties_go_to_the_first() -> None:
    assert select_best([0.1, 0.9, 0.5, 0.5], ["a", "a", "b", "b"]) == {"a": 1, "b": 2}
    with pytest.raises(UsageError):
        select_best([0.1], ["a", "b"])


def test_perfect_scores_reach_the_oracle_and_constant_ones_the_first() -> None:
    rng = np.random.default_rng(0)
    tasks = [f"t{i // 4}" for i in range(200)]
    truth = rng.random(200) < 0.4
    perfect = selection_report(truth.astype(float), truth, tasks, 4)
    assert perfect.selected == perfect.oracle
    assert perfect.pass_at_1.mean == pytest.approx(truth.mean())
    assert perfect.gain.low > 0
    assert perfect.gain.mean == pytest.approx(perfect.selected.mean - perfect.pass_at_1.mean)
    assert perfect.within_task_auc == perfect.auc == 1.0
    blind = selection_report(np.zeros(200), truth, tasks, 4)
    assert blind.selected.mean == pytest.approx(truth[::4].mean())
    assert blind.within_task_auc == 0.5


def test_only_the_first_n_candidates_are_looked_at() -> None:
    report = selection_report([0.1, 0.2, 0.9], [0, 0, 1], ["a", "a", "a"], 2)
    assert (report.selected.mean, report.oracle.mean, report.n) == (0.0, 0.0, 2)
    with pytest.raises(UsageError, match="'b' has 1"):
        selection_report([0.1, 0.2, 0.9], [0, 0, 1], ["a", "a", "b"], 2)
