"""From a trajectory to the tokens that a value model reads, and to its label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchard_core.errors import UsageError
from orchard_core.trajectory.types import Trajectory
from orchard_value.errors import LeakageError


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """A trajectory's longest context: `ids` of shape (T,); the last assistant turn begins at
    `turn_start`. It is the prompt of the longest call followed by its completion."""

    ids: NDArray[np.int32]
    turn_start: int

    def tail(self, max_tokens: int) -> TokenSequence:
        """The last `max_tokens` tokens: the end of a trajectory tells most of how it went."""
        cut = max(0, len(self.ids) - max_tokens)
        return TokenSequence(self.ids[cut:], max(0, self.turn_start - cut))


def token_sequence(trajectory: Trajectory) -> TokenSequence:
    """The longest call's tokens (of equally long ones the last); raises UsageError without any."""
    best = max(
        trajectory.calls,
        key=lambda call: (len(call.prompt_ids) + len(call.completion_ids), call.index),
        default=None,
    )
    if best is None or len(best.prompt_ids) + len(best.completion_ids) == 0:
        raise UsageError(f"trajectory {trajectory.id!r} has no recorded tokens; a value model cannot read it")
    ids = np.concatenate([best.prompt_ids, best.completion_ids]).astype(np.int32)
    return TokenSequence(ids, min(len(best.prompt_ids), len(ids) - 1))


def has_tokens(trajectory: Trajectory) -> bool:
    """Whether any call recorded token ids."""
    return any(len(call.prompt_ids) + len(call.completion_ids) for call in trajectory.calls)


def usable(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
    """Those with a verdict and tokens: infrastructure failures say nothing about success."""
    return [t for t in trajectories if t.reward.verdict != "none" and has_tokens(t)]


def labels(trajectories: Sequence[Trajectory]) -> NDArray[np.float32]:
    """1 for success, 0 for failure; shape (N,)."""
    return np.array([t.reward.verdict == "success" for t in trajectories], dtype=np.float32)


def package_of(trajectory: Trajectory) -> str:
    """The package (repository, site, ...) that a task comes from: its tag, or nothing."""
    return trajectory.tags.get("package", "")


def check_no_leakage(train: Iterable[Trajectory], held_out: Iterable[Trajectory]) -> None:
    """Raise LeakageError when a task or a package is on both sides."""
    train, held_out = list(train), list(held_out)
    for kind, key in (("task", lambda t: t.task_id), ("package", package_of)):
        shared = sorted(({key(t) for t in train} & {key(t) for t in held_out}) - {""})
        if shared:
            raise LeakageError(
                f"{len(shared)} {kind}s are in training and in held-out data, such as {shared[0]!r}; "
                f"split by {kind} before training a value model"
            )


def split_by_origin(
    trajectories: Sequence[Trajectory], share: float, seed: int
) -> tuple[list[Trajectory], list[Trajectory]]:
    """Split into (train, validation) with about `share` of the origins in validation.

    The origin is the package where trajectories name one, else the task; an origin is never split.
    With fewer than two origins validation is empty.
    """
    origins = sorted({_origin(t) for t in trajectories})
    count = min(max(1, round(share * len(origins))), len(origins) - 1) if share > 0 else 0
    order = np.random.default_rng(seed).permutation(len(origins))
    chosen = {origins[index] for index in order[: max(0, count)]}
    return [t for t in trajectories if _origin(t) not in chosen], [
        t for t in trajectories if _origin(t) in chosen
    ]


def _origin(trajectory: Trajectory) -> str:
    return package_of(trajectory) or f"task:{trajectory.task_id}"
