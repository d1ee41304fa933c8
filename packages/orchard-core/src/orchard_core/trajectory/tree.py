"""The tree of a rollout's calls: a call whose prompt begins with an earlier call's exact ids continues it.

Sub-agents, retries by the harness and compaction make branches; nothing is guessed from text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from orchard_core.trajectory.types import ModelCall


@dataclass(frozen=True, slots=True)
class CallTree:
    """`parents[k]` is the position of the call that call k continues, None for a root. `leaves` are the
    positions of calls that none continues, in order."""

    parents: tuple[int | None, ...]
    leaves: tuple[int, ...]

    def chain(self, leaf: int) -> list[int]:
        """The positions from the root down to `leaf`."""
        path = []
        at: int | None = leaf
        while at is not None:
            path.append(at)
            at = self.parents[at]
        return path[::-1]


def build_tree(calls: Sequence[ModelCall]) -> CallTree:
    """Join each call to the longest earlier one whose prompt and completion its prompt begins with.

    `calls` are in order of their start, so a parent always comes before its children.
    """
    parents: list[int | None] = []
    open_ends: list[tuple[bytes, int]] = []
    for at, call in enumerate(calls):
        prompt = _packed(call.prompt_ids)
        fitting = [(len(end), other) for end, other in open_ends if prompt.startswith(end)]
        parents.append(max(fitting)[1] if fitting else None)
        if len(call.completion_ids):
            open_ends.append((prompt + _packed(call.completion_ids), at))
    continued = set(parents)
    return CallTree(tuple(parents), tuple(at for at in range(len(calls)) if at not in continued))


def _packed(ids: np.ndarray[tuple[int], np.dtype[np.int32]]) -> bytes:
    # Byte prefixes of int32 arrays are id prefixes, since all lengths are multiples of four.
    return np.ascontiguousarray(ids, dtype="<i4").tobytes()
