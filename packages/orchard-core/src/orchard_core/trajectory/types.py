"""ModelCall, Trajectory, Sample: the recorded facts of a rollout and what is trained from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from orchard_core.domain.types import Reward

TokenSource = Literal["engine", "rendered", "none"]
"""Where a call's ids come from: sampled by the engine, rendered from text (a teacher), or unknown."""
PromptMode = Literal["extended", "rendered", "reported", "none"]
"""The prompt's ids extend an earlier call's exact ids, were rendered whole, or were reported by the engine."""
Status = Literal["completed", "truncated", "truncated_time", "aborted"]
"""completed: the agent ended by itself; truncated: step or token limit; truncated_time: time limit;
aborted: an infrastructure failure (neither trains nor enters a baseline)."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One request and its response. Times are Unix seconds."""

    id: str
    index: int
    request: Mapping[str, Any]
    response: Mapping[str, Any]
    prompt_ids: NDArray[np.int32]
    completion_ids: NDArray[np.int32]
    logprobs: NDArray[np.float32] | None
    token_source: TokenSource
    prompt_mode: PromptMode
    finish_reason: str
    model: str
    weight_version: int
    started_at: float
    first_token_at: float
    finished_at: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a rollout ended. `cause` names the reason ("submitted", "step_limit", "sandbox", ...)."""

    status: Status
    cause: str
    detail: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a trajectory comes from; `generation` counts trainings of the model line."""

    run: str
    stage: str
    recipe: str = ""
    generation: int = 0
    group: str = ""
    sample: int = 0
    seed: int = 0
    parent: str = ""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A rollout's calls, outcome, reward, collected result and lineage; immutable once made."""

    id: str
    task_id: str
    domain: str
    harness: str
    model: str
    calls: tuple[ModelCall, ...]
    outcome: Outcome
    reward: Reward
    lineage: Lineage
    result: Mapping[str, bytes] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    started_at: float = 0.0
    finished_at: float = 0.0
    timings: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """One token sequence to train on. All arrays have shape (T,).

    `mask[t]` says that `ids[t]` was sampled by the model and is trained; `logprobs[t]` is its
    behaviour log-probability (0 where not sampled or unknown: see `has_logprobs`);
    `calls[t]` is the index of the call that sampled it, -1 elsewhere.
    """

    trajectory_id: str
    task_id: str
    ids: NDArray[np.int32]
    mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    calls: NDArray[np.int32]
    has_logprobs: bool
    weight_version: int

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class SampleReport:
    """What sample building did: every sampled token is trained once or dropped with a reason."""

    samples: tuple[Sample, ...]
    merges: int
    branches: int
    trained_tokens: int
    dropped: Mapping[str, int] = field(default_factory=dict)


def total_dropped(reports: Sequence[SampleReport]) -> int:
    """Sampled tokens that no sample trains, over all reports."""
    return sum(sum(report.dropped.values()) for report in reports)
