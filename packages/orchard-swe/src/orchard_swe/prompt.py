"""The issue's text: as few tokens as can be, and nothing that the faulty program does not show."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

from orchard_swe.instances import Instance
from orchard_swe.mutation import apply_edit

MAX_ERROR = 60
MAX_LINE = 90


def instruction(instance: Instance) -> str:
    """The failing test with its error, the suspicious file, and its suspicious lines.

    A star marks the three most suspicious rows.
    """
    clean = instance.package.files()[instance.file].decode()
    lines = apply_edit(clean, instance.fault).split("\n")
    test = instance.visible[0].replace("::", ".").rsplit(".", 1)[-1]
    heading = f"{test}: {instance.error[:MAX_ERROR]}"
    return render_issue(heading, instance.file, lines, instance.focus, instance.marked)


def narrowed(instance: Instance, rows: int) -> Instance | None:
    """The instance with at most `rows` rows shown: the marked ones, then those nearest to them.

    None when the fault's line is not among them: such a task could not be solved from its issue.
    """
    places = {line: place for place, line in enumerate(instance.focus)}
    marked = [places[line] for line in instance.marked]
    order = sorted(instance.focus, key=lambda line: (min(abs(places[line] - m) for m in marked), line))
    shown = tuple(sorted(order[:rows]))
    return replace(instance, focus=shown) if instance.line in shown else None


def render_issue(
    heading: str, path: str, lines: Sequence[str], shown: Iterable[int], marked: Container[int]
) -> str:
    """The text, for the lines numbered `shown` (from 1) of a file's `lines`.

    Rows are numbered from 1, as the tool `sub` takes them: fewer tokens than numbers of lines, and
    the same in every issue.
    """
    rows = [heading, path]
    for row, number in enumerate(shown, 1):
        mark = "*" if number in marked else " "
        rows.append(f"{mark}{row}|{lines[number - 1][:MAX_LINE].rstrip()}")
    return "\n".join(rows) + "\n"
