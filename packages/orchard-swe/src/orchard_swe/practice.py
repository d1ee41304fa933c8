"""Practice conversations: faults planted in the training packages' source, each with its repair.

They need no tests and no sandbox, so there can be many; they teach a model that starts from nothing
the language of the issues and of the edit command, at the first attempt and after failed ones. When
to stop, and what real tests say, only real rollouts show.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from orchard_core.domain import Task
from orchard_swe.instances import Instance, find_instance
from orchard_swe.mutation import Fault, LineEdit, apply_edit, find_faults
from orchard_swe.mutation.edits import substitute
from orchard_swe.mutation.tables import ARITHMETIC, AUGMENTED, BOOLEAN, COMPARISONS, JUMPS, WORDS
from orchard_swe.packages import is_test_path
from orchard_swe.prompt import render_issue
from orchard_swe.teacher import CALL_ID, EXCHANGES, bash_call, edit_command, issue_edits, issue_rows

MIN_ROWS, REACH = 4, 30
TABLE_CHANGES = [
    (old, new)
    for table in (COMPARISONS, ARITHMETIC, AUGMENTED, BOOLEAN, WORDS, JUMPS)
    for old, news in table.items()
    for new in news
]
MARK_CHANCE = 0.67
"""How often the faulty line is among the marked ones."""


def practice(
    tasks: Sequence[Task], system: str, failed_attempts: int, seed: int
) -> Iterator[list[dict[str, Any]]]:
    """Endless conversations that end in a repair, after 0 to `failed_attempts` wrong ones; none when no fault of the tasks' kinds can be planted.

    Kinds of faults come as often as among the tasks, and packages equally often within a kind.
    """
    generator = random.Random(seed)
    instances = [find_instance(task.id) for task in tasks]
    headings = [task.instruction.split("\n", 1)[0] for task in tasks]
    max_rows = max(len(task.payload["focus"]) for task in tasks)
    places = _places(instances)
    kinds = [instance.kind for instance in instances if instance.kind in places]
    while kinds:
        packages = places[generator.choice(kinds)]
        path, source, fault = generator.choice(packages[generator.choice(sorted(packages))])
        issue, row = _issue(path, source, fault, headings, max_rows, generator)
        right = replace(fault.repair, line=row)
        count = generator.randint(0, failed_attempts)
        attempts = _wrong(issue, right, count, generator) if count else []
        yield [
            {"role": "system", "content": system},
            {"role": "user", "content": issue},
            *(message for turn, edit in enumerate(attempts) for message in _failed(issue, edit, turn)),
            _attempt(right, len(attempts)),
        ]


def _wrong(issue: str, right: LineEdit, count: int, generator: random.Random) -> list[LineEdit]:
    """Distinct wrong attempts: plausible repairs, and as often ones whose old text is not on their row."""
    plausible = [e for e in issue_edits(issue, right.kind in EXCHANGES) if _change(e) != _change(right)]
    rows = issue_rows(issue)
    changes = [(edit.old, edit.new) for edit in plausible] + [generator.choice(TABLE_CHANGES) for _ in rows]
    misplaced = [
        LineEdit(row, old, new, 1, "repair")
        for row, text in rows.items()
        for old, new in changes
        if old not in text
    ]
    generator.shuffle(plausible)
    generator.shuffle(misplaced)
    kinds = [plausible, misplaced]
    drawn = [kind.pop() for _ in range(count) if (kind := generator.choice(kinds))]
    return list({_change(edit): edit for edit in drawn}.values())


def _change(edit: LineEdit) -> tuple[int, str, str, int]:
    return edit.line, edit.old, edit.new, edit.occurrence


def _attempt(edit: LineEdit, turn: int) -> dict[str, Any]:
    return bash_call(f"{'undo && ' if turn else ''}{edit_command(edit)} && t")


def _failed(issue: str, edit: LineEdit, turn: int) -> list[dict[str, Any]]:
    """A wrong attempt, which is shown but not to be learnt, and what the tools would answer."""
    error = issue.split("\n", 1)[0].partition(": ")[2]
    changed = substitute(issue_rows(issue)[edit.line], edit.old, edit.new, edit.occurrence)
    done = f"{edit.line}|{changed}\nFAIL {error}" if changed else f"not on row {edit.line}: {edit.old}"
    answer = f"{done}\n(exit 1)"
    return [
        {**_attempt(edit, turn), "weight": 0},
        {"role": "tool", "tool_call_id": CALL_ID, "content": answer},
    ]


Place = tuple[str, str, Fault]
"""A file's path, its clean source, and a fault that can be planted in it."""


def _places(instances: Sequence[Instance]) -> dict[str, dict[str, list[Place]]]:
    """By kind and package: what can be planted in the source files of the instances' packages."""
    places: dict[str, dict[str, list[Place]]] = {}
    packages = {instance.package.key: instance.package for instance in instances}
    for key in sorted(packages):
        for path, data in sorted(packages[key].files().items()):
            if not path.endswith(".py") or is_test_path(path):
                continue
            try:
                source = data.decode()
                faults = find_faults(source, checked=False)
            except (UnicodeDecodeError, SyntaxError):
                continue
            for fault in faults:
                places.setdefault(fault.plant.kind, {}).setdefault(key, []).append((path, source, fault))
    return places


def _issue(
    path: str, source: str, fault: Fault, headings: Sequence[str], max_rows: int, generator: random.Random
) -> tuple[str, int]:
    """An issue in the form of the real ones, around the fault, and the fault's row in it."""
    lines = apply_edit(source, fault.plant).split("\n")
    number = fault.plant.line
    near = range(max(1, number - REACH), min(len(lines), number + REACH) + 1)
    rows = [n for n in near if n == number or _is_code(lines[n - 1])]
    size = min(generator.randint(min(MIN_ROWS, max_rows), max_rows), len(rows))
    start = max(0, min(rows.index(number) - generator.randrange(size), len(rows) - size))
    shown = rows[start : start + size]
    marked = set(generator.sample(shown, min(3, size)))
    if generator.random() < MARK_CHANCE:
        marked.add(number)
    issue = render_issue(generator.choice(headings), path, lines, shown, marked)
    return issue, shown.index(number) + 1


def _is_code(line: str) -> bool:
    text = line.strip()
    return bool(text) and not text.startswith(("#", '"""', "'''"))
