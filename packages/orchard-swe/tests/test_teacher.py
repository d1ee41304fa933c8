"""The scripted teacher and the practice conversations, on the shipped tasks."""

from __future__ import annotations

import json
import random
import re
import shlex
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard_core.domain import Task
from orchard_core.errors import UsageError
from orchard_swe.domain import SweDomain
from orchard_swe.mutation.edits import substitute
from orchard_swe.teacher import (
    TeacherStyle,
    edit_command,
    fault_exchanges,
    focus_edits,
    issue_rows,
    make_plan,
    next_command,
    quoted,
    row_edit,
)

pytestmark = pytest.mark.needs_index

OPTIONS = {"packages": ["roman", "webcolors"], "rows": 4}
chances = st.floats(0, 1)


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    domain = SweDomain()
    return [*domain.tasks("train", OPTIONS), *domain.tasks("held_out", OPTIONS)]


def command_of(message: dict[str, Any]) -> str:
    command: str = json.loads(message["tool_calls"][0]["function"]["arguments"])["command"]
    return command


def command_row(command: str) -> str:
    return shlex.split(command.removeprefix("undo && "))[1]


def edited(command: str, text: str) -> str | None:
    """What `sub` of a command makes of its line of an issue; None if it does not apply."""
    words = shlex.split(command.removeprefix("undo && ").removesuffix(" && t"))
    assert words[0] == "sub"
    occurrence = int(words[4]) if len(words) > 4 else 1
    return substitute(issue_rows(text)[int(words[1])], words[2], words[3], occurrence)


def test_the_right_repair_is_one_row_of_the_issue(tasks: list[Task]) -> None:
    assert tasks
    for task in tasks:
        assert edited(edit_command(row_edit(task)), task.instruction) is not None


def test_wrong_attempts_apply_and_differ_from_the_right_one(tasks: list[Task]) -> None:
    for task in tasks:
        for edit in focus_edits(task, fault_exchanges(task)):
            changed = edited(edit_command(edit), task.instruction)
            assert changed is not None
            assert changed != issue_rows(task.instruction)[edit.line]


def play(task: Task, style: TeacherStyle, seed: int, right_passes: bool = True) -> list[str]:
    """The teacher's commands where the tests pass just after the right repair."""
    plan = make_plan(task, style, random.Random(seed))
    right = edit_command(row_edit(task))
    messages: list[dict[str, Any]] = [{"role": "user", "content": task.instruction}]
    commands: list[str] = []
    while not commands or commands[-1] != "submit":
        assert len(commands) <= style.max_attempts
        commands.append(next_command(plan, messages))
        ok = right_passes and right in commands[-1] and commands[-1].endswith("&& t")
        messages += [
            {"role": "assistant"},
            {"role": "tool", "content": "1|x\nOK\n" if ok else "FAIL\n(exit 1)"},
        ]
    return commands


@given(chances, chances, chances, st.integers(1, 6), st.integers(0, 9999), st.data())
def test_an_episode_ends_and_undoes_every_wrong_attempt(
    insight: float, despair: float, haste: float, attempts: int, seed: int, data: st.DataObject
) -> None:
    every = SweDomain().tasks("train", OPTIONS)
    task = data.draw(st.sampled_from(every))
    commands = play(task, TeacherStyle(insight, despair, haste, attempts), seed)
    assert commands[-1] == "submit"
    assert 1 < len(commands) <= attempts + 1
    assert all(command.startswith("undo && ") for command in commands[1:-1])
    assert len(set(commands)) == len(commands)


def test_insight_repairs_at_once_and_without_it_haste_and_despair_end_early(tasks: list[Task]) -> None:
    for task in tasks:
        right = f"{edit_command(row_edit(task))} && t"
        assert play(task, TeacherStyle(insight=1, despair=0, haste=0), 0) == [right, "submit"]
        hasty = play(task, TeacherStyle(insight=1, despair=0, haste=1), 0)
        assert hasty == [edit_command(row_edit(task)), "submit"]
        if [e for e in focus_edits(task, fault_exchanges(task)) if e != row_edit(task)]:
            assert len(play(task, TeacherStyle(insight=0, despair=1, haste=0), 0)) == 2


def test_a_patient_teacher_finds_every_repair(tasks: list[Task]) -> None:
    patient = TeacherStyle(insight=0, despair=0, haste=0, max_attempts=200)
    for task in tasks:
        commands = play(task, patient, 1)
        assert edit_command(row_edit(task)) in commands[-2]


@given(st.text(st.characters(exclude_characters="\0"), max_size=8))
def test_a_quoted_word_reaches_the_command_as_it_is(text: str) -> None:
    assert shlex.split(quoted(text)) == [text]


def test_practice_repairs_what_it_plants_and_repeats_by_its_seed(tasks: list[Task]) -> None:
    train = [task for task in tasks if task.split == "train"]
    domain = SweDomain()
    options = {"system": "Repair.", "failed_attempts": 2}
    made = list(islice(domain.practice(train, options, 5), 60))
    assert made == list(islice(domain.practice(train, options, 5), 60))
    assert made != list(islice(domain.practice(train, options, 6), 60))
    assert {len(one) for one in islice(domain.practice(train, {}, 5), 60)} == {3}
    attempts, kinds = set(), set()
    for system, user, *turns in made:
        assert system == {"role": "system", "content": "Repair."}
        assert len(issue_rows(user["content"])) <= 4
        *failed, right = [message for message in turns if message["role"] == "assistant"]
        assert [message["weight"] for message in failed] == [0] * len(failed)
        assert "weight" not in right
        commands = [command_of(message) for message in (*failed, right)]
        answers = [message["content"] for message in turns if message["role"] == "tool"]
        assert edited(commands[-1], user["content"]) is not None
        for command, answer in zip(commands, answers, strict=False):
            changed = edited(command, user["content"])
            kinds.add(changed is None)
            assert answer.startswith(
                "not on row" if changed is None else f"{command_row(command)}|{changed}\n"
            )
        assert [command.startswith("undo && ") for command in commands] == [False, *([True] * len(failed))]
        assert len(set(commands)) == len(commands)
        attempts.add(len(failed))
    assert attempts == {0, 1, 2}
    assert kinds == {True, False}


def test_practice_shows_training_packages_only(tasks: list[Task]) -> None:
    train = [task for task in tasks if task.split == "train"]
    held_out = {str(task.payload["file"]) for task in tasks if task.split == "held_out"}
    shown = {
        conversation[1]["content"].splitlines()[1]
        for conversation in islice(SweDomain().practice(train, {}, 1), 100)
    }
    assert shown
    assert not shown & held_out
    assert all(re.fullmatch(r"[\w/.]+\.py", path) for path in shown)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"failed_atempts": 1}, "did you mean 'failed_attempts'"),
        ({"failed_attempts": "two"}, "must be int"),
        ({"failed_attempts": True}, "must be int"),
        ({"system": 3}, "must be str"),
    ],
)
def test_wrong_practice_options_are_named(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        SweDomain().practice([], options, 0)


def test_wrong_teacher_options_are_named() -> None:
    with pytest.raises(UsageError, match="did you mean 'haste'"):
        SweDomain().teacher(lambda _: Task("t", "d", ""), {"hast": 0.1}, 0)
    with pytest.raises(UsageError, match="must be float"):
        SweDomain().teacher(lambda _: Task("t", "d", ""), {"haste": "often"}, 0)
