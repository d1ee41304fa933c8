"""The whole domain: numbers lie in one file, and the agent must leave their sum in another."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from orchard_core.domain import Reward, Split, Task
from orchard_core.env import Provider, Sandbox
from orchard_core.errors import UsageError

FOLDER = "/workspace"
NUMBERS, ANSWER = f"{FOLDER}/numbers.txt", f"{FOLDER}/sum.txt"
INSTRUCTION = f"{NUMBERS} holds one number a line. Write their sum, and nothing else, to {ANSWER}."
TASKS = {"train": 80, "held_out": 20}


class SumsDomain:
    """Option of `tasks`: `limit`, at most so many tasks."""

    @property
    def name(self) -> str:
        return "sums"

    def tasks(self, split: Split, options: Mapping[str, Any]) -> Sequence[Task]:
        """The same tasks in the same order at every call; what differs between them follows from the id."""
        limit = options.get("limit", TASKS[split])
        if not isinstance(limit, int) or limit < 1:
            raise UsageError(
                f"the option limit of the domain sums must be a whole number above 0, not {limit!r}"
            )
        return [self._task(split, number) for number in range(min(limit, TASKS[split]))]

    def _task(self, split: Split, number: int) -> Task:
        task_id = f"sums-{split}-{number}"
        generator = random.Random(task_id)
        numbers = [generator.randint(-99, 99) for _ in range(generator.randint(2, 9))]
        # The payload stays on this side; the agent sees the instruction and what `prepare` puts into its sandbox.
        return Task(task_id, self.name, INSTRUCTION, split=split, payload={"numbers": numbers})

    async def prepare(self, task: Task, sandbox: Sandbox) -> None:
        lines = "".join(f"{number}\n" for number in task.payload["numbers"])
        await sandbox.write_file(NUMBERS, lines.encode())

    async def collect(self, task: Task, sandbox: Sandbox) -> Mapping[str, bytes]:
        """A missing file raises SandboxFileError, which the rollout counts as the agent's failure."""
        return {"sum": await sandbox.read_file(ANSWER)}

    async def grade(self, task: Task, result: Mapping[str, bytes], provider: Provider) -> Reward:
        """Comparing needs no sandbox. A domain that runs what the agent wrote makes a fresh one here."""
        right = str(sum(task.payload["numbers"])).encode()
        return Reward.success() if result["sum"].strip() == right else Reward.failure(reason="another sum")

    def reference(self, task: Task) -> Mapping[str, bytes]:
        """A right result, for recipes that begin with a `validate` stage. Optional."""
        return {"sum": str(sum(task.payload["numbers"])).encode()}
