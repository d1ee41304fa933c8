"""A scripted teacher for the repair tasks: an engine like any other, which knows the fault.

It plays the harness to give demonstrations of a search: try a repair, run the failing test, undo,
try the next. It is a poor teacher on purpose, as real ones are: it often tries plausible wrong repairs first, it
sometimes gives up, and it sometimes submits without having run the test. What it shows are the
moves; the order in which to make them, and not to give up, is left to reinforcement learning.
"""

from __future__ import annotations

import random
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from orchard_core.domain import Task
from orchard_core.engine.protocol import ChatReply, ChatRequest, Message
from orchard_swe.mutation import LineEdit, candidate_edits

EXCHANGES = frozenset({"variable", "arguments", "return"})
CALL_ID = "call_0"
SHOWN = re.compile(r"[* ](\d+)\|(.*)")
"""A row of the issue: mark, number, source."""


@dataclass(frozen=True, slots=True)
class TeacherStyle:
    """How good the teacher is; every field is a probability.

    `insight`: that an attempt is the right repair (otherwise a plausible wrong one);
    `despair`: that it submits unrepaired code after a failed attempt;
    `haste`: that it submits an attempt without running the test.
    """

    insight: float = 0.35
    despair: float = 0.15
    haste: float = 0.15
    max_attempts: int = 8


@dataclass(frozen=True, slots=True)
class _Plan:
    """The attempts of one episode in order, and after how many the teacher gives up."""

    attempts: tuple[LineEdit, ...]
    hasty: frozenset[int] = field(default_factory=frozenset)


class ScriptedTeacher:
    """MessageEngine for repair tasks; `task_of` maps a rollout's id to its task.

    The teacher holds no state: what it does next follows from the rollout's id and the messages.
    """

    def __init__(self, task_of: Callable[[str], Task], style: TeacherStyle, seed: int) -> None:
        self._task_of = task_of
        self._style = style
        self._seed = seed

    @property
    def model(self) -> str:
        return "scripted-teacher"

    async def complete(self, request: ChatRequest) -> ChatReply:
        task = self._task_of(request.session)
        plan = make_plan(task, self._style, random.Random(f"{self._seed}/{request.session}"))
        command = next_command(plan, request.messages)
        return ChatReply(message=bash_call(command), finish_reason="tool_calls")

    async def close(self) -> None:
        return None


def make_plan(task: Task, style: TeacherStyle, rng: random.Random) -> _Plan:
    """Draw an episode's attempts: wrong ones by the operator tables, the right one by insight."""
    right = row_edit(task)
    wrong = [edit for edit in focus_edits(task, fault_exchanges(task)) if edit != right]
    rng.shuffle(wrong)
    attempts: list[LineEdit] = []
    hasty: set[int] = set()
    while len(attempts) < style.max_attempts:
        found = rng.random() < style.insight or not wrong
        if rng.random() < style.haste:
            hasty.add(len(attempts))
        attempts.append(right if found else wrong.pop())
        if found or rng.random() < style.despair or hasty:
            break
    return _Plan(tuple(attempts), frozenset(hasty))


def next_command(plan: _Plan, messages: Sequence[Message]) -> str:
    """The command after these messages."""
    done = sum(message["role"] == "assistant" for message in messages)
    if done and (passed(messages[-1]) or done - 1 in plan.hasty or done >= len(plan.attempts)):
        return "submit"
    command = edit_command(plan.attempts[done])
    if done not in plan.hasty:
        command += " && t"
    return f"undo && {command}" if done else command


def passed(message: Message) -> bool:
    """Whether a tool message reports that the failing test passes now."""
    lines = str(message.get("content") or "").strip().splitlines()
    return bool(lines) and lines[-1].strip() == "OK"


def row_edit(task: Task) -> LineEdit:
    """The repair, with the row of the issue in place of the line."""
    fault = task.payload
    row = list(fault["focus"]).index(fault["line"]) + 1
    return LineEdit(row, fault["old"], fault["new"], fault["occurrence"], fault["kind"])


def fault_exchanges(task: Task) -> bool:
    """Whether the task's fault is of a kind that exchanges names or arguments."""
    return task.payload["kind"] in EXCHANGES


def focus_edits(task: Task, exchange: bool) -> list[LineEdit]:
    """Every plausible single repair of the rows that the task shows; see `issue_edits`."""
    return issue_edits(task.instruction, exchange)


def issue_edits(issue: str, exchange: bool) -> list[LineEdit]:
    """Every plausible single repair of an issue's rows.

    `exchange` as in `candidate_edits`: names and arguments are many, and would crowd out the rest.
    """
    return [
        LineEdit(row, old, new, 1, "repair")
        for row, text in issue_rows(issue).items()
        for old, new in candidate_edits(text, exchange=exchange)
    ]


def issue_rows(issue: str) -> dict[int, str]:
    """The source lines that an issue shows, by row."""
    shown = (SHOWN.match(line) for line in issue.splitlines()[2:])
    return {int(row[1]): row[2] for row in shown if row is not None}


def edit_command(edit: LineEdit) -> str:
    """The edit as a command of the task's toolbox."""
    parts = ["sub", str(edit.line), quoted(edit.old), quoted(edit.new)]
    if edit.occurrence > 1:
        parts.append(str(edit.occurrence))
    return " ".join(parts)


def quoted(text: str) -> str:
    """A shell word, always in quotes: what needs none is quoted too, so that all look alike."""
    return "'" + text + "'" if "'" not in text else shlex.quote(text)


def bash_call(command: str) -> dict[str, Any]:
    """An assistant message that calls the `bash` tool."""
    arguments = orjson.dumps({"command": command}).decode()
    call = {"id": CALL_ID, "type": "function", "function": {"name": "bash", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def example_commands(task: Task, rng: random.Random, count: int) -> Iterator[str]:
    """Commands of the kind that an agent writes for this task (for training a tokenizer)."""
    edits = focus_edits(task, fault_exchanges(task))
    for number in range(count if edits else 0):
        edit = edit_command(rng.choice(edits))
        yield f"undo && {edit} && t" if number % 2 else f"{edit} && t"
    yield "submit"
