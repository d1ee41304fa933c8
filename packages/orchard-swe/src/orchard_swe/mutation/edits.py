"""A substitution on one source line, the only kind of change that a planted fault makes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LineEdit:
    """Replace the `occurrence`-th (from 1, not overlapping) `old` on line `line` (from 1) by `new`.

    `kind` names the operator that made it.
    """

    line: int
    old: str
    new: str
    occurrence: int
    kind: str


def column_of(text: str, old: str, occurrence: int) -> int | None:
    """The column of the `occurrence`-th non-overlapping `old` in `text`, or None."""
    column = -len(old)
    for _ in range(occurrence):
        column = text.find(old, column + len(old))
        if column < 0:
            return None
    return column


def occurrence_at(text: str, old: str, column: int) -> int | None:
    """Which non-overlapping occurrence of `old` starts at `column`, or None when none does."""
    count, at = 0, -len(old)
    while True:
        at = text.find(old, at + len(old))
        if at < 0 or at > column:
            return None
        count += 1
        if at == column:
            return count


def substitute(text: str, old: str, new: str, occurrence: int) -> str | None:
    """`text` with one occurrence replaced, or None when it is not there."""
    if not old:
        return None
    column = column_of(text, old, occurrence)
    if column is None:
        return None
    return text[:column] + new + text[column + len(old) :]


def apply_edit(source: str, edit: LineEdit) -> str:
    """`source` with the edit made. Raises ValueError when the old text is not on the line."""
    lines = source.splitlines(keepends=True)
    if not 1 <= edit.line <= len(lines):
        raise ValueError(f"there is no line {edit.line}")
    changed = substitute(lines[edit.line - 1], edit.old, edit.new, edit.occurrence)
    if changed is None:
        raise ValueError(f"{edit.old!r} is not on line {edit.line}")
    lines[edit.line - 1] = changed
    return "".join(lines)


def edit_at(
    text: str, line: int, column: int, old: str, new: str, kind: str
) -> tuple[LineEdit, LineEdit] | None:
    """The edit at a column of a line's text and the edit that reverts it.

    A side that would be empty, or whose occurrence could not be counted without overlap, is
    widened to the left by the word before it. None when no such pair exists.
    """
    while not old or not new:
        wider = _word_start(text, column)
        if wider == column:
            return None
        prefix = text[wider:column]
        old, new, column = prefix + old, prefix + new, wider
    changed = text[:column] + new + text[column + len(old) :]
    there = occurrence_at(text, old, column)
    back = occurrence_at(changed, new, column)
    if there is None or back is None or old == new:
        return None
    return LineEdit(line, old, new, there, kind), LineEdit(line, new, old, back, kind)


def _word_start(text: str, column: int) -> int:
    """Where the run of blanks before `column` and the word or sign before that begin."""
    at = column
    while at > 0 and text[at - 1] == " ":
        at -= 1
    start = at
    while at > 0 and (text[at - 1].isalnum() or text[at - 1] == "_"):
        at -= 1
    if at == start and at > 0 and text[at - 1] != " ":
        at -= 1
    return at if text[at:column].strip() else column
