"""What a domain may offer beyond the Domain protocol, and stages ask for by isinstance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from orchard_core.domain import Task
from orchard_core.engine.protocol import Message, MessageEngine


@runtime_checkable
class HasReference(Protocol):
    """A domain that knows a right result for each of its tasks."""

    def reference(self, task: Task) -> Mapping[str, bytes]:
        """A result that must be graded a success."""
        ...


@runtime_checkable
class HasTeacher(Protocol):
    """A domain with a scripted teacher that can play a harness."""

    def teacher(
        self, task_of: Callable[[str], Task], options: Mapping[str, Any], seed: int
    ) -> MessageEngine: ...


@runtime_checkable
class HasCorpus(Protocol):
    """A domain that offers text like that of its conversations, for training a tokenizer."""

    def corpus(self, tasks: Sequence[Task], seed: int) -> Iterable[str]: ...


@runtime_checkable
class HasPractice(Protocol):
    """A domain that can make up practice conversations without running anything."""

    def practice(
        self, tasks: Sequence[Task], options: Mapping[str, Any], seed: int
    ) -> Iterable[Sequence[Message]]:
        """Endless conversations about problems like the tasks', each ended by an assistant's message."""
        ...
