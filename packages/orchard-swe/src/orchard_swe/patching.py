"""Reads an agent's diff, drops what must not count, and applies the rest exactly, on the host."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchard_swe.errors import PatchError
from orchard_swe.packages import is_test_path

MAX_PATCH_BYTES = 1_000_000
_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")
_CONFIG_NAMES = frozenset(
    [
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "tox.ini",
        "setup.cfg",
        "setup.py",
        "pyproject.toml",
        "noxfile.py",
        ".coveragerc",
        "sitecustomize.py",
        "usercustomize.py",
    ]
)


@dataclass(frozen=True, slots=True)
class Hunk:
    """`start` is the first old line (from 1); `lines` carry their leading sign and their line end."""

    start: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FilePatch:
    """Changes to one file; `kind` says whether it is changed, added or deleted."""

    path: str
    kind: str
    hunks: tuple[Hunk, ...]
    text: str


def parse_patch(data: bytes) -> list[FilePatch]:
    """The text changes of a git diff without renames. Raises PatchError."""
    if len(data) > MAX_PATCH_BYTES:
        raise PatchError(f"the diff is larger than {MAX_PATCH_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise PatchError(f"the diff is not UTF-8: {error}") from None
    sections = re.split(r"(?m)^(?=diff --git )", text)
    return [_parse_file(section) for section in sections if section.startswith("diff --git ")]


def _parse_file(section: str) -> FilePatch:
    lines = re.findall(r"[^\n]*\n|[^\n]+", section)
    head = lines[0].rstrip("\n")
    old = new = ""
    kind = "change"
    index = 1
    while index < len(lines) and not lines[index].startswith("@@"):
        line = lines[index].rstrip("\n")
        if line.startswith("--- "):
            old = line[4:].split("\t")[0]
        elif line.startswith("+++ "):
            new = line[4:].split("\t")[0]
        elif line.startswith("new file mode"):
            kind = "add"
            if not line.endswith(("100644", "100755")):
                kind = "other"  # a link or a submodule
        elif line.startswith("deleted file mode"):
            kind = "delete"
        elif line.startswith(("rename ", "copy ", "Binary files", "GIT binary patch")):
            kind = "other"
        index += 1
    named = new if new not in ("", "/dev/null") else old
    path = named[2:] if named[:2] in ("a/", "b/") else head.rpartition(" b/")[2]
    if path.startswith(('"', "/")) or ".." in path.split("/") or not path:
        kind = "other"
    return FilePatch(path, kind, tuple(_parse_hunks(lines[index:])) if kind != "other" else (), section)


def _parse_hunks(lines: Sequence[str]) -> list[Hunk]:
    hunks: list[Hunk] = []
    start, body = 0, list[str]()
    for line in lines:
        match = _HUNK.match(line)
        if match:
            if body:
                hunks.append(Hunk(start, tuple(body)))
            start, body = int(match.group(1)) + (match.group(2) == "0"), []
        elif line.startswith("\\") and body:
            body[-1] = body[-1].removesuffix("\n")
        elif line[0] in " +-":
            body.append(line)
        else:
            raise PatchError(f"the diff has the unexpected line {line[:40]!r}")
    if body:
        hunks.append(Hunk(start, tuple(body)))
    return hunks


def drop_reason(patch: FilePatch) -> str | None:
    """Why a file's changes do not count, or None when they do.

    Tests, their configuration and what Python runs by itself at its start are out of bounds.
    """
    folders, _, name = patch.path.rpartition("/")
    if patch.kind == "other":
        return "not a plain text change"
    if is_test_path(patch.path):
        return "tests"
    if name in _CONFIG_NAMES:
        return "test or build configuration"
    if name.endswith((".pth", ".pyc", ".pyo", ".so", ".egg-link")) or "__pycache__" in folders.split("/"):
        return "start-up or compiled file"
    if patch.path.startswith(".git/") or name.startswith(".git"):
        return "repository data"
    return None


def filter_patches(patches: Sequence[FilePatch]) -> tuple[list[FilePatch], dict[str, str]]:
    """The changes that count, and the reason for each path that was dropped."""
    reasons = {patch.path: reason for patch in patches if (reason := drop_reason(patch)) is not None}
    return [patch for patch in patches if patch.path not in reasons], reasons


def apply_patches(files: Mapping[str, bytes], patches: Sequence[FilePatch]) -> dict[str, bytes]:
    """`files` with the changes made; every context line must fit. Raises PatchError."""
    changed = dict(files)
    for patch in patches:
        if patch.kind == "add":
            if patch.path in files:
                raise PatchError(f"{patch.path} is there already")
            before = ""
        elif patch.path not in changed:
            raise PatchError(f"there is no file {patch.path}")
        else:
            before = changed[patch.path].decode("utf-8", "surrogateescape")
        after = _apply_hunks(before, patch)
        if patch.kind == "delete":
            del changed[patch.path]
        else:
            changed[patch.path] = after.encode("utf-8", "surrogateescape")
    return changed


def _apply_hunks(before: str, patch: FilePatch) -> str:
    lines = re.findall(r"[^\n]*\n|[^\n]+", before)
    result: list[str] = []
    at = 0
    for hunk in patch.hunks:
        start = max(hunk.start - 1, 0)
        if start < at or start > len(lines):
            raise PatchError(f"a hunk of {patch.path} does not fit")
        result.extend(lines[at:start])
        at = start
        for line in hunk.lines:
            sign, text = line[0], line[1:]
            if sign == "+":
                result.append(text)
                continue
            if at >= len(lines) or lines[at] != text:
                raise PatchError(f"line {at + 1} of {patch.path} is not what the diff says")
            if sign == " ":
                result.append(text)
            at += 1
    return "".join([*result, *lines[at:]])
