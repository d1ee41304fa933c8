"""The Harness protocol: how an agent program is put into a sandbox, launched and judged to have ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from orchard_core.domain.types import Task
from orchard_core.env.handle import ExecResult, Sandbox
from orchard_core.env.spec import Mount
from orchard_core.trajectory.types import Outcome


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """Where the harness finds its model, as seen from inside the sandbox. `api_key` is the session's secret."""

    base_url: str
    api_key: str
    model: str


@dataclass(frozen=True, slots=True)
class HarnessLimits:
    """Caps of one episode. Times in seconds; `max_turns` counts model calls."""

    max_turns: int = 50
    timeout_s: float = 1500.0
    command_timeout_s: float = 60.0
    max_tokens: int = 512


@dataclass(frozen=True, slots=True)
class HarnessLaunch:
    """What to run in the sandbox."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    cwd: str | None = None


class Harness(Protocol):
    """A binding of one agent program, pinned to a version."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    async def install(self) -> tuple[Mount, ...]:
        """Fetch into the cache if need be; return the read-only mounts that sandboxes need.

        Raises UsageError when it can't be fetched."""
        ...

    def launch(self, task: Task, endpoint: ModelEndpoint, limits: HarnessLimits) -> HarnessLaunch: ...

    async def classify(self, launched: ExecResult, sandbox: Sandbox, limits: HarnessLimits) -> Outcome:
        """Turn the program's exit into a typed outcome."""
        ...
