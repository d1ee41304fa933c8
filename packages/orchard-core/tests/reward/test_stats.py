"""Confidence intervals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from orchard_core.errors import UsageError
from orchard_core.reward.stats import Interval, mean_ci, paired_diff_ci, pass_at_k, wilson


def test_wilson_gives_the_published_values() -> None:
    # Brown, Cai and DasGupta's formula evaluated by hand for 8 of 10.
    interval = wilson(8, 10)
    assert (interval.mean, interval.n) == (0.8, 10)
    assert interval.low == pytest.approx(0.4902, abs=1e-4)
    assert interval.high == pytest.approx(0.9433, abs=1e-4)
    assert wilson(0, 100).low == 0.0
    assert wilson(0, 100).high == pytest.approx(0.0370, abs=1e-4)
    assert wilson(100, 100).high == 1.0


def test_the_bootstrap_agrees_with_the_normal_interval_for_many_tasks() -> None:
    rng = np.random.default_rng(1)
    values = {str(i): [float(v)] for i, v in enumerate(rng.random(400) < 0.3)}
    interval = mean_ci(values, seed=0)
    mean = float(np.mean([v[0] for v in values.values()]))
    half = 1.96 * float(np.sqrt(mean * (1 - mean) / 400))
    assert interval.mean == pytest.approx(mean)
    assert interval.low == pytest.approx(mean - half, abs=0.006)
    assert interval.high == pytest.approx(mean + half, abs=0.006)


def test_tasks_are_the_units_not_rollouts() -> None:
    few = {"a": [1.0], "b": [0.0], "c": [1.0], "d": [0.0]}
    repeated = {task: values * 50 for task, values in few.items()}
    assert mean_ci(few, seed=3) == mean_ci(repeated, seed=3)
    assert mean_ci({"a": [1.0] * 99, "b": [0.0]}, seed=0).mean == 0.5


def test_intervals_are_a_function_of_the_seed() -> None:
    values = {str(i): [float(i % 3 == 0)] for i in range(50)}
    assert mean_ci(values, seed=1) == mean_ci(values, seed=1)


def test_no_success_at_all_still_has_an_upper_bound() -> None:
    interval = mean_ci({str(i): [0.0, 0.0] for i in range(150)})
    assert interval == wilson(0, 150)
    assert interval.high > 0.02


def test_pairing_removes_what_tasks_have_in_common() -> None:
    a = {str(i): [float(i % 2)] for i in range(100)}
    b = {str(i): [float(i % 2) + 0.1] for i in range(100)}
    interval = paired_diff_ci(a, b)
    assert interval.low == pytest.approx(0.1)
    assert interval.high == pytest.approx(0.1)
    with pytest.raises(UsageError, match="same tasks"):
        paired_diff_ci(a, {"0": [1.0]})


def test_pass_at_k_is_the_share_of_draws_with_a_success() -> None:
    for n, c in [(5, 0), (5, 2), (5, 5), (6, 1)]:
        outcomes = [1] * c + [0] * (n - c)
        for k in range(1, n + 1):
            draws = list(itertools.combinations(outcomes, k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(max(draw) for draw in draws) / len(draws))
    with pytest.raises(UsageError):
        pass_at_k(3, 1, 4)


def test_empty_input_is_refused() -> None:
    with pytest.raises(UsageError):
        mean_ci({})
    with pytest.raises(UsageError, match="'t'"):
        mean_ci({"t": []})
    with pytest.raises(UsageError):
        wilson(1, 0)


def test_apartness() -> None:
    assert Interval(0.1, 0.0, 0.2, 9).apart_from(Interval(0.5, 0.3, 0.6, 9))
    assert not Interval(0.1, 0.0, 0.3, 9).apart_from(Interval(0.5, 0.3, 0.6, 9))
