"""Mined repair instances: the record, the shipped list, and the SWE-bench shape."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files as resource_files
from typing import Any, Literal

from orchard_swe.errors import InstanceError
from orchard_swe.mutation import LineEdit, apply_edit
from orchard_swe.packages import Package, from_json

CREATED_AT = "2020-01-01T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Instance:
    """One planted fault.

    In `file`, on `line`, the `occurrence`-th `old` (the faulty text) must become `new` (the right
    text); `plant_occurrence` counts `new` on the clean line. `f2p` and `p2p` index the package's
    tests. `focus` are the most suspicious lines, in order; `marked` the top three of them. `error`
    is how the first failing test fails.
    """

    id: str
    package: Package
    file: str
    line: int
    old: str
    new: str
    occurrence: int
    plant_occurrence: int
    kind: str
    function: str
    f2p: tuple[int, ...]
    p2p: tuple[int, ...]
    focus: tuple[int, ...]
    marked: tuple[int, ...]
    error: str

    @property
    def repair(self) -> LineEdit:
        return LineEdit(self.line, self.old, self.new, self.occurrence, self.kind)

    @property
    def fault(self) -> LineEdit:
        return LineEdit(self.line, self.new, self.old, self.plant_occurrence, self.kind)

    @property
    def fail_to_pass(self) -> tuple[str, ...]:
        return tuple(self.package.tests[index] for index in self.f2p)

    @property
    def pass_to_pass(self) -> tuple[str, ...]:
        return tuple(self.package.tests[index] for index in self.p2p)

    @property
    def visible(self) -> tuple[str, ...]:
        """The failing tests that the issue names: the first one."""
        return self.fail_to_pass[:1]

    def faulty_files(self) -> dict[str, bytes]:
        """The package's files with the fault planted. Raises InstanceError when it does not fit."""
        files = self.package.files()
        if self.file not in files:
            raise InstanceError(f"{self.id} names {self.file}, which {self.package.key} does not hold")
        try:
            files[self.file] = apply_edit(files[self.file].decode(), self.fault).encode()
        except ValueError as error:
            raise InstanceError(f"{self.id} does not fit {self.package.key}: {error}") from None
        return files


def to_json(instance: Instance) -> dict[str, Any]:
    return {
        "id": instance.id, "package": instance.package.key, "file": instance.file, "line": instance.line,
        "old": instance.old, "new": instance.new, "occurrence": instance.occurrence,
        "plant_occurrence": instance.plant_occurrence, "kind": instance.kind, "function": instance.function,
        "f2p": _to_ranges(instance.f2p), "p2p": _to_ranges(instance.p2p), "focus": _to_ranges(instance.focus),
        "marked": _to_ranges(instance.marked), "error": instance.error,
    }  # fmt: skip


def from_json_line(line: str, packages: dict[str, Package]) -> Instance:
    """Raises InstanceError when the record is malformed."""
    try:
        record = json.loads(line)
        ranges = {key: _from_ranges(record[key]) for key in ("f2p", "p2p", "focus", "marked")}
        return Instance(**{**record, **ranges, "package": packages[record["package"]]})
    except (ValueError, KeyError, TypeError) as error:
        raise InstanceError(f"an instance record cannot be read: {error!r}") from None


def read_list(packages_text: str, instances_text: str) -> list[Instance]:
    """Instances from the two texts of a list (packages.json and instances.jsonl)."""
    packages = {package.key: package for package in map(from_json, json.loads(packages_text))}
    return [from_json_line(line, packages) for line in instances_text.splitlines() if line]


@lru_cache(maxsize=1)
def _shipped() -> tuple[Instance, ...]:
    data = resource_files("orchard_swe") / "data"
    return tuple(read_list((data / "packages.json").read_text(), (data / "instances.jsonl").read_text()))


def load_instances(split: Literal["train", "held_out"] | None = None) -> list[Instance]:
    """The shipped list, or one split of it, in a fixed order."""
    return [instance for instance in _shipped() if split is None or instance.package.split == split]


def find_instance(instance_id: str, instances: Iterable[Instance] | None = None) -> Instance:
    """Raises InstanceError for an unknown id."""
    for instance in _shipped() if instances is None else instances:
        if instance.id == instance_id:
            return instance
    raise InstanceError(f"there is no instance {instance_id!r}; `orchard swe show` lists the ids")


def gold_patch(instance: Instance) -> str:
    """The unified diff that repairs the fault."""
    clean = instance.package.files()[instance.file].decode()
    faulty = apply_edit(clean, instance.fault)
    return file_diff(instance.file, faulty, clean)


def file_diff(path: str, before: str, after: str) -> str:
    """A unified diff of one text file, in git's shape."""
    lines = list(
        difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}")
    )
    body = "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines
    )
    return f"diff --git a/{path} b/{path}\n{body}" if body else ""


def to_swebench(instance: Instance, problem_statement: str, base_commit: str) -> dict[str, Any]:
    """The instance with SWE-bench's field names; lists are JSON text, as in its data sets."""
    return {
        "instance_id": instance.id,
        "repo": instance.package.name,
        "version": instance.package.version,
        "base_commit": base_commit,
        "patch": gold_patch(instance),
        "test_patch": "",
        "problem_statement": problem_statement,
        "hints_text": "",
        "created_at": CREATED_AT,
        "FAIL_TO_PASS": json.dumps(instance.fail_to_pass),
        "PASS_TO_PASS": json.dumps(instance.pass_to_pass),
        "environment_setup_commit": base_commit,
    }


def _to_ranges(numbers: Sequence[int]) -> str:
    """`(1, 2, 3, 7)` as "1-3,7"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _from_ranges(text: str) -> tuple[int, ...]:
    numbers: list[int] = []
    for part in text.split(",") if text else []:
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return tuple(numbers)
