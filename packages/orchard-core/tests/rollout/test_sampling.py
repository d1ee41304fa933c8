"""Balanced Adaptive Rollout and uniform groups."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchard_core.errors import UsageError
from orchard_core.rollout.sampling import (
    BalancedSampler,
    Group,
    Scored,
    UniformSampler,
    classify,
    drop_reason,
    positive_counts,
    select,
    select_exhausted,
)
from orchard_core.trajectory.types import Status

Kind = tuple[float | None, Status]

GOOD: Kind = (1.0, "completed")
BAD: Kind = (-1.0, "completed")
KINDS: tuple[Kind, ...] = (
    GOOD,
    (1.0, "truncated"),
    BAD,
    (-1.0, "truncated"),
    (1.0, "truncated_time"),
    (None, "completed"),
    (None, "aborted"),
)
BOUNDS = [(0.25, 0.75), (0.0, 1.0), (0.5, 0.5), (0.3, 1.0)]
RANK: dict[Status, int] = {"completed": 0, "truncated": 1, "truncated_time": 2, "aborted": 3}


def scored_of(kinds: Sequence[Kind]) -> list[Scored]:
    return [Scored(index, reward, status) for index, (reward, status) in enumerate(kinds)]


def is_positive(item: Scored) -> bool:
    return item.reward is not None and item.reward > 0


def is_valid(item: Scored) -> bool:
    return item.reward is not None and item.status in ("completed", "truncated")


def check_order(scored: Sequence[Scored], chosen: Sequence[int]) -> None:
    """Within positives and within negatives nothing better ranked was passed over."""
    for positive in (True, False):
        pool = [s for s in scored if is_valid(s) and is_positive(s) == positive]
        ranked = sorted(pool, key=lambda s: (RANK[s.status], s.index))
        taken = [i for i in chosen if is_valid(scored[i]) and is_positive(scored[i]) == positive]
        assert taken == [s.index for s in ranked[: len(taken)]]


@pytest.mark.parametrize(("p_min", "p_max"), BOUNDS)
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_selection_meets_its_bounds_and_is_nearest_the_middle_for_every_pattern(
    n: int, p_min: float, p_max: float
) -> None:
    low, high, middle = math.ceil(p_min * n), math.floor(p_max * n), round((p_min + p_max) / 2 * n)
    for size in range(1, 6):
        for kinds in itertools.combinations_with_replacement(KINDS, size):
            scored = scored_of(kinds)
            chosen = select(scored, n, p_min, p_max)
            positives = sum(is_valid(s) and is_positive(s) for s in scored)
            negatives = sum(is_valid(s) and not is_positive(s) for s in scored)
            feasible = [k for k in range(low, high + 1) if k <= positives and n - k <= negatives]
            assert (chosen is None) == (not feasible)
            if chosen is None:
                continue
            assert len(set(chosen)) == len(chosen) == n
            assert all(is_valid(scored[i]) for i in chosen)
            k = sum(is_positive(scored[i]) for i in chosen)
            assert low <= k <= high
            assert abs(k - middle) == min(abs(f - middle) for f in feasible)
            check_order(scored, chosen)


def test_every_order_of_a_pattern_keeps_the_ranking_rule() -> None:
    for kinds in itertools.product(KINDS[:5], repeat=5):
        scored = scored_of(kinds)
        chosen = select(scored, 3, 0.0, 1.0)
        if chosen is not None:
            check_order(scored, chosen)


def test_exhausted_selection_backfills_only_what_valid_rollouts_cannot_fill() -> None:
    for kinds in itertools.product(KINDS, repeat=4):
        scored = scored_of(kinds)
        chosen = select_exhausted(scored, 3)
        valid = sum(is_valid(s) for s in scored)
        assert len(set(chosen)) == 3
        assert sum(is_valid(scored[i]) for i in chosen) == min(3, valid)
        backfill = [RANK[scored[i].status] for i in chosen if not is_valid(scored[i])]
        assert backfill == sorted(backfill)
        check_order(scored, chosen)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (GOOD, "positive"),
        ((0.0, "completed"), "negative"),
        ((-1.0, "truncated"), "negative"),
        ((1.0, "truncated_time"), "backfill"),
        ((1.0, "aborted"), "backfill"),
        ((None, "completed"), "backfill"),
    ],
)
def test_classification(kind: Kind, expected: str) -> None:
    assert classify(Scored(0, *kind)) == expected


def test_counts_start_in_the_middle_and_survive_rounding() -> None:
    assert positive_counts(4, 0.25, 0.75) == [2, 1, 3]
    assert positive_counts(8, 0.25, 0.75) == [4, 3, 5, 2, 6]
    assert min(positive_counts(100, 0.07, 1.0)) == 7  # 0.07 * 100 is a little above 7 in floats
    assert max(positive_counts(10, 0.0, 0.3)) == 3


async def run(
    sampler: BalancedSampler | UniformSampler, kinds: Sequence[Kind]
) -> tuple[Group[int], list[list[int]]]:
    asked: list[list[int]] = []

    async def generate(wanted: Sequence[int]) -> list[int]:
        asked.append(list(wanted))
        return list(wanted)

    group = await sampler.sample(generate, lambda item: Scored(-1, *kinds[item]))
    return group, asked


async def test_sampling_stops_as_soon_as_a_balanced_group_exists() -> None:
    group, asked = await run(BalancedSampler(4, 8, 2), [GOOD, GOOD, BAD, BAD, GOOD, BAD, BAD, BAD])
    assert asked == [[0, 1], [2, 3]]
    assert (group.rounds, group.early_stopped, group.dropped) == (2, True, None)
    assert group.selected == (0, 1, 2, 3)
    assert group.rewards == (1.0, 1.0, -1.0, -1.0)


async def test_sampling_goes_on_until_a_success_shows_up() -> None:
    group, asked = await run(BalancedSampler(4, 8, 2), [BAD] * 5 + [GOOD] + [BAD] * 2)
    assert asked == [[0, 1], [2, 3], [4, 5]]
    assert group.selected == (5, 0, 1, 2)
    assert group.early_stopped


async def test_the_last_stride_is_cut_to_the_maximum() -> None:
    group, asked = await run(BalancedSampler(4, 7, 3), [BAD] * 7)
    assert asked == [[0, 1, 2], [3, 4, 5], [6]]
    assert (group.early_stopped, group.dropped) == (False, "no_positive")


async def test_a_stride_of_the_maximum_never_stops_early() -> None:
    group, asked = await run(BalancedSampler(4, 8, 8), [GOOD, BAD] * 4)
    assert len(asked) == 1
    assert not group.early_stopped
    assert len(group.selected) == 4


async def test_an_all_success_prompt_is_dropped_for_its_lack_of_spread() -> None:
    group, _ = await run(BalancedSampler(), [GOOD] * 8)
    assert group.dropped == "no_spread"
    assert len(group.generated) == 8


@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=12, max_size=12),
    n=st.integers(1, 5),
    extra=st.integers(0, 7),
    stride=st.integers(1, 12),
    bounds=st.sampled_from(BOUNDS),
)
@settings(max_examples=200, deadline=None)
async def test_a_sampled_group_is_the_first_selectable_prefix(
    kinds: list[Kind], n: int, extra: int, stride: int, bounds: tuple[float, float]
) -> None:
    if not positive_counts(n, *bounds):
        return
    most = n + extra
    group, asked = await run(BalancedSampler(n, most, stride, *bounds), kinds)
    drawn = list(itertools.chain.from_iterable(asked))
    assert drawn == list(range(len(drawn)))
    assert len(drawn) <= most
    assert len(group.selected) == n
    assert list(group.selected) == list(group.indices)
    prefixes = list(itertools.accumulate(len(wanted) for wanted in asked))
    assert all(select(group.scored[:size], n, *bounds) is None for size in prefixes[:-1])
    final = select(group.scored, n, *bounds)
    assert list(group.indices) == (select_exhausted(group.scored, n) if final is None else final)
    assert group.early_stopped == (final is not None and len(drawn) < most)
    assert group.dropped == drop_reason([group.scored[i] for i in group.indices])


@pytest.mark.parametrize(
    ("kinds", "reason"),
    [
        ([GOOD, BAD], None),
        ([GOOD, (1.0, "aborted")], "aborted"),
        ([GOOD, (None, "completed")], "no_reward"),
        ([BAD, (0.0, "completed")], "no_positive"),
        ([GOOD, GOOD], "no_spread"),
        ([(1.0, "completed"), (1.0 + 1e-6, "completed")], "no_spread"),
        ([GOOD, (-1.0, "truncated_time")], None),
    ],
)
def test_the_dynamic_filter(kinds: list[Kind], reason: str | None) -> None:
    assert drop_reason(scored_of(kinds)) == reason


async def test_a_uniform_group_takes_everything_it_drew() -> None:
    group, asked = await run(UniformSampler(3), [BAD, GOOD, BAD])
    assert asked == [[0, 1, 2]]
    assert group.selected == (0, 1, 2)
    assert (group.dropped, group.early_stopped, group.rounds) == (None, False, 1)


async def test_a_generator_that_returns_too_few_rollouts_is_an_error() -> None:
    async def generate(wanted: Sequence[int]) -> list[int]:
        return list(wanted)[1:]

    with pytest.raises(UsageError, match="returned 1 rollouts for 2"):
        await BalancedSampler().sample(generate, lambda item: Scored(item, 1.0, "completed"))


@pytest.mark.parametrize(
    "bad",
    [
        {"n": 0},
        {"n": 9},
        {"stride": 0},
        {"p_min": 0.8, "p_max": 0.2},
        {"p_max": 1.5},
        {"n": 4, "p_min": 0.3, "p_max": 0.4},
    ],
)
def test_impossible_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        BalancedSampler(**bad)  # type: ignore[arg-type]
