"""Loaders for public lists of web tasks. They keep every field and hash what they read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from orchard_core.errors import UsageError


class TaskListError(UsageError):
    """A task list can't be read or is not of the named kind."""


@dataclass(frozen=True, slots=True)
class WebTask:
    """One task on a live site; `raw` is the list's own record."""

    id: str
    instruction: str
    start_url: str
    raw: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TaskList:
    """A list with the SHA-256 of its bytes: name it beside every number measured on it."""

    kind: str
    tasks: tuple[WebTask, ...]
    sha256: str


FIELDS: dict[str, tuple[str, str, str]] = {
    "webvoyager": ("id", "ques", "web"),
    "deepshop": ("id", "ques", "web"),
    "online_mind2web": ("task_id", "confirmed_task", "website"),
}
"""By kind of list: the fields that hold a task's id, instruction and first page."""


def load_task_list(path: Path, kind: str) -> TaskList:
    """Read a list of JSON lines or one JSON array. Raises TaskListError."""
    if kind not in FIELDS:
        raise TaskListError(f"there is no task list kind {kind!r}; known are {', '.join(FIELDS)}")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TaskListError(f"the task list {path} can't be read: {error.strerror}") from error
    read: Callable[[bytes], list[Any]] = _array if data.lstrip()[:1] == b"[" else _lines
    try:
        records = read(data)
    except orjson.JSONDecodeError as error:
        raise TaskListError(f"{path} is not JSON: {error}") from error
    tasks = tuple(_task(record, kind, path, number) for number, record in enumerate(records, 1))
    repeated = len(tasks) - len({task.id for task in tasks})
    if repeated:
        raise TaskListError(f"{path}: {repeated} task ids occur more than once")
    return TaskList(kind, tasks, hashlib.sha256(data).hexdigest())


def _array(data: bytes) -> list[Any]:
    found: list[Any] = orjson.loads(data)
    return found


def _lines(data: bytes) -> list[Any]:
    return [orjson.loads(line) for line in data.splitlines() if line.strip()]


def _task(record: Any, kind: str, path: Path, number: int) -> WebTask:
    missing = [name for name in FIELDS[kind] if not isinstance(record, dict) or name not in record]
    if missing:
        raise TaskListError(f"{path}: record {number} has no field {missing[0]!r}; is it a {kind} list?")
    identity, instruction, start = (str(record[name]) for name in FIELDS[kind])
    return WebTask(identity, instruction, start, record)
