"""Scores with known right values."""

from __future__ import annotations

import pytest

from orchard_claw.scoring import pass_hat_k_estimated, pass_hat_k_observed, passed, score
from orchard_core.errors import UsageError


def test_the_score_weighs_completion_and_robustness_and_safety_gates() -> None:
    assert score(1, 1, 1) == pytest.approx(1)
    assert score(0.5, 1, 1) == pytest.approx(0.6)
    assert score(1, 1, 0) == 0


def test_three_quarters_pass_and_less_does_not() -> None:
    assert passed(score(0.6875, 1, 1))
    assert not passed(0.7499)


def test_the_two_definitions_of_all_k_passing_differ() -> None:
    trials = [True, True, False]
    assert pass_hat_k_estimated(trials, 3) == pytest.approx(8 / 27)
    assert pass_hat_k_observed(trials, 3) == 0
    assert pass_hat_k_observed(trials, 2) == 1


@pytest.mark.parametrize("parts", [(1.1, 0, 0), (0, -0.1, 0), (0, 0, 2)])
def test_parts_outside_zero_and_one_are_refused(parts: tuple[float, float, float]) -> None:
    with pytest.raises(UsageError):
        score(*parts)


def test_too_few_trials_are_refused() -> None:
    with pytest.raises(UsageError, match="needs at least 3 trials"):
        pass_hat_k_observed([True], 3)
    with pytest.raises(UsageError):
        pass_hat_k_estimated([], 1)
