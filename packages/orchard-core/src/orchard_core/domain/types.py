"""Task and Reward: what a domain gives to a rollout and what it says about the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from orchard_core.env.spec import SandboxSpec

Split = Literal["train", "held_out"]
Verdict = Literal["success", "failure", "none"]


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. `payload` is the domain's own and is never shown to the agent."""

    id: str
    domain: str
    instruction: str
    sandbox: SandboxSpec = field(default_factory=SandboxSpec)
    split: Split = "train"
    payload: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reward:
    """A value with its named parts and a verdict; `value` is None exactly when verdict is "none"."""

    value: float | None
    verdict: Verdict
    parts: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    def __post_init__(self) -> None:
        if (self.value is None) != (self.verdict == "none"):
            raise ValueError('a reward has a value exactly when its verdict is not "none"')

    @classmethod
    def success(cls, value: float = 1.0, **parts: float) -> Reward:
        return cls(value, "success", parts)

    @classmethod
    def failure(cls, value: float = -1.0, reason: str = "", **parts: float) -> Reward:
        return cls(value, "failure", parts, reason)

    @classmethod
    def none(cls, reason: str) -> Reward:
        """No reward could be given; `reason` says why. Such a rollout never trains."""
        return cls(None, "none", {}, reason)
