"""The issue's text: as few tokens as can be, and nothing that the faulty program does not show."""

from __future__ import annotations

from orchard_swe.instances import Instance
from orchard_swe.mutation import apply_edit

MAX_ERROR = 60
MAX_LINE = 90


def instruction(instance: Instance) -> str:
    """The failing test with its error, the suspicious file, and its suspicious lines.

    A star marks the three most suspicious lines.
    """
    clean = instance.package.files()[instance.file].decode()
    lines = apply_edit(clean, instance.fault).split("\n")
    test = instance.visible[0].replace("::", ".").rsplit(".", 1)[-1]
    rows = [f"{test}: {instance.error[:MAX_ERROR]}", instance.file]
    for number in instance.focus:
        mark = "*" if number in instance.marked else " "
        rows.append(f"{mark}{number}|{lines[number - 1][:MAX_LINE].rstrip()}")
    return "\n".join(rows) + "\n"
