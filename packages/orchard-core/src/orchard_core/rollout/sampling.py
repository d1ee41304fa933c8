"""Group sampling: how many rollouts of one prompt to draw, and which of them train.

`BalancedSampler` is Balanced Adaptive Rollout (BAR; Orchard, arXiv 2605.15040v3): it draws in
strides and stops as soon as a group with a bounded share of successes can be formed, so that
easy and hard prompts cost few rollouts and mixed groups carry signal. `UniformSampler` is the
plain fixed-size group. Both are pure logic: what a rollout is stays with the caller.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

from orchard_core.errors import UsageError
from orchard_core.trajectory.types import Status

T = TypeVar("T")

Kind = Literal["positive", "negative", "backfill"]
DropReason = Literal["aborted", "no_reward", "no_positive", "no_spread"]
"""Why a group does not train: a member ended in an infrastructure failure, a member has no reward,
nobody succeeded, or all rewards are equal."""

MIN_SPREAD = 1e-6
"""A group whose rewards have a standard deviation of at most this carries no advantage."""

_ORDER: dict[Status, int] = {"completed": 0, "truncated": 1, "truncated_time": 2, "aborted": 3}
# Bounds such as 0.07 * 100 come out as 7.000000000000001; without slack they would round to 8.
_ROUNDING_SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class Scored:
    """What selection needs to know of a rollout. `index` is its position among those generated."""

    index: int
    reward: float | None
    status: Status


@dataclass(frozen=True, slots=True)
class Group(Generic[T]):
    """The rollouts drawn for one prompt and the ones chosen to train.

    `selected` is what enters loss and baseline unless `dropped` names a reason. `indices` are the
    positions of the selected within `generated`; `scored` runs parallel to `generated`.
    """

    selected: tuple[T, ...]
    generated: tuple[T, ...]
    scored: tuple[Scored, ...]
    indices: tuple[int, ...]
    dropped: DropReason | None
    rounds: int
    early_stopped: bool

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """Rewards of the selected, in their order."""
        return tuple(self.scored[index].reward for index in self.indices)


def classify(scored: Scored) -> Kind:
    """Positive (reward > 0), negative (reward <= 0), or backfill.

    Backfill holds what says nothing certain about the agent: aborted rollouts, rollouts without
    a reward, and rollouts that the time limit ended (a slow machine may be to blame).
    """
    if scored.reward is None or scored.status in ("aborted", "truncated_time"):
        return "backfill"
    return "positive" if scored.reward > 0 else "negative"


def _ordered(scored: Sequence[Scored], kind: Kind) -> list[int]:
    members = (item for item in scored if classify(item) == kind)
    return [item.index for item in sorted(members, key=lambda item: (_ORDER[item.status], item.index))]


def positive_counts(n: int, p_min: float, p_max: float) -> list[int]:
    """The allowed numbers of positives in a group of n, nearest first to the middle of the bounds.

    Of two equally near counts the smaller comes first.
    """
    low = math.ceil(p_min * n - _ROUNDING_SLACK)
    high = math.floor(p_max * n + _ROUNDING_SLACK)
    middle = round((p_min + p_max) / 2 * n)
    return sorted(range(low, high + 1), key=lambda count: (abs(count - middle), count))


def select(scored: Sequence[Scored], n: int, p_min: float, p_max: float) -> list[int] | None:
    """Choose n rollouts whose share of positives lies in [p_min, p_max], or None if none can be.

    Returns indices, positives before negatives; within each, completed before truncated, and
    earlier before later. Backfill is never chosen here.
    """
    positives, negatives = _ordered(scored, "positive"), _ordered(scored, "negative")
    if len(positives) + len(negatives) < n:
        return None
    for count in positive_counts(n, p_min, p_max):
        if count <= len(positives) and n - count <= len(negatives):
            return positives[:count] + negatives[: n - count]
    return None


def select_exhausted(scored: Sequence[Scored], n: int) -> list[int]:
    """Choose once no more may be drawn: any share of positives, then backfill up to n."""
    chosen = select(scored, n, 0.0, 1.0)
    if chosen is not None:
        return chosen
    valid = _ordered(scored, "positive") + _ordered(scored, "negative")
    return (valid + _ordered(scored, "backfill"))[:n]


def drop_reason(members: Sequence[Scored]) -> DropReason | None:
    """The dynamic filter: why a selected group carries no usable signal, or None if it trains."""
    if any(member.status == "aborted" for member in members):
        return "aborted"
    rewards = [member.reward for member in members if member.reward is not None]
    if len(rewards) < len(members):
        return "no_reward"
    if not any(reward > 0 for reward in rewards):
        return "no_positive"
    mean = math.fsum(rewards) / len(rewards)
    spread = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    return "no_spread" if spread <= MIN_SPREAD else None


@dataclass(frozen=True, slots=True)
class BalancedSampler:
    """Balanced Adaptive Rollout: draw `stride` rollouts at a time, at most `max_samples`.

    A stride as large as `max_samples` never stops early; smaller ones save rollouts and cost
    parallelism.
    """

    n: int = 4
    max_samples: int = 8
    stride: int = 2
    p_min: float = 0.25
    p_max: float = 0.75

    def __post_init__(self) -> None:
        if not 1 <= self.n <= self.max_samples:
            raise UsageError(f"group size {self.n} must be between 1 and max_samples {self.max_samples}")
        if self.stride < 1:
            raise UsageError(f"stride {self.stride} must be at least 1")
        if not 0 <= self.p_min <= self.p_max <= 1:
            raise UsageError(
                f"0 <= p_min <= p_max <= 1 must hold, not p_min {self.p_min}, p_max {self.p_max}"
            )
        if not positive_counts(self.n, self.p_min, self.p_max):
            raise UsageError(
                f"no number of successes among {self.n} lies within [{self.p_min}, {self.p_max}]; "
                "widen the bounds or enlarge the group"
            )

    async def sample(
        self,
        generate: Callable[[Sequence[int]], Awaitable[Sequence[T]]],
        score: Callable[[T], Scored],
    ) -> Group[T]:
        """Draw and select. `generate` gets the sample numbers of one stride and returns one rollout
        for each, in that order; `score` reads a rollout (the `index` it gives is replaced)."""
        generated: list[T] = []
        scored: list[Scored] = []
        rounds = 0
        while len(generated) < self.max_samples:
            wanted = range(len(generated), min(len(generated) + self.stride, self.max_samples))
            await _draw(wanted, generate, score, generated, scored)
            rounds += 1
            chosen = select(scored, self.n, self.p_min, self.p_max)
            if chosen is not None:
                return _group(generated, scored, chosen, rounds, len(generated) < self.max_samples)
        return _group(generated, scored, select_exhausted(scored, self.n), rounds, early_stopped=False)


@dataclass(frozen=True, slots=True)
class UniformSampler:
    """Exactly n rollouts a prompt, all of them selected; the dynamic filter applies as in BAR."""

    n: int = 4

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UsageError(f"group size {self.n} must be at least 1")

    async def sample(
        self,
        generate: Callable[[Sequence[int]], Awaitable[Sequence[T]]],
        score: Callable[[T], Scored],
    ) -> Group[T]:
        """Draw n rollouts at once; arguments as for `BalancedSampler.sample`."""
        generated: list[T] = []
        scored: list[Scored] = []
        await _draw(range(self.n), generate, score, generated, scored)
        return _group(generated, scored, list(range(self.n)), rounds=1, early_stopped=False)


Sampler = BalancedSampler | UniformSampler


async def _draw(
    wanted: Sequence[int],
    generate: Callable[[Sequence[int]], Awaitable[Sequence[T]]],
    score: Callable[[T], Scored],
    generated: list[T],
    scored: list[Scored],
) -> None:
    fresh = await generate(wanted)
    if len(fresh) != len(wanted):
        raise UsageError(f"generate returned {len(fresh)} rollouts for {len(wanted)} sample numbers")
    for index, item in zip(wanted, fresh, strict=True):
        generated.append(item)
        scored.append(replace(score(item), index=index))


def _group(
    generated: Sequence[T], scored: Sequence[Scored], chosen: Sequence[int], rounds: int, early_stopped: bool
) -> Group[T]:
    return Group(
        selected=tuple(generated[index] for index in chosen),
        generated=tuple(generated),
        scored=tuple(scored),
        indices=tuple(chosen),
        dropped=drop_reason([scored[index] for index in chosen]),
        rounds=rounds,
        early_stopped=early_stopped,
    )
