"""The Domain protocol: all that a third party implements to add its own problems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from orchard_core.domain.types import Reward, Split, Task
from orchard_core.env.handle import Provider, Sandbox


@runtime_checkable
class Domain(Protocol):
    """A plug-in: task sources, sandbox preparation, collection and grading."""

    @property
    def name(self) -> str: ...

    def tasks(self, split: Split, options: Mapping[str, Any]) -> Sequence[Task]:
        """The tasks of a split, in a fixed order. `options` is the recipe's `data` section."""
        ...

    async def prepare(self, task: Task, sandbox: Sandbox) -> None:
        """Bring a fresh sandbox to the task's starting state."""
        ...

    async def collect(self, task: Task, sandbox: Sandbox) -> Mapping[str, bytes]:
        """Take the agent's result (such as a diff) out of its sandbox, before that is destroyed."""
        ...

    async def grade(self, task: Task, result: Mapping[str, bytes], provider: Provider) -> Reward:
        """Judge the result, in a fresh sandbox where one is needed, never in the agent's.

        Infrastructure failures raise InfrastructureError; they are not the agent's failure.
        """
        ...
