"""Task lists: the public formats, their hashes, and mistakes."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from orchard_gui.tasks import TaskListError, load_task_list

VOYAGER = {"web_name": "Shop", "id": "Shop--0", "ques": "Find a lamp.", "web": "https://shop.example/"}
MIND2WEB = {
    "task_id": "a1",
    "confirmed_task": "Find a lamp.",
    "website": "https://shop.example/",
    "level": "easy",
}


def test_json_lines_and_arrays_are_read_and_hashed(tmp_path: Path) -> None:
    lines = tmp_path / "tasks.jsonl"
    lines.write_text(json.dumps(VOYAGER) + "\n\n" + json.dumps({**VOYAGER, "id": "Shop--1"}) + "\n")
    found = load_task_list(lines, "webvoyager")
    assert [task.id for task in found.tasks] == ["Shop--0", "Shop--1"]
    assert found.tasks[0].raw["web_name"] == "Shop"
    assert found.sha256 == hashlib.sha256(lines.read_bytes()).hexdigest()
    array = tmp_path / "tasks.json"
    array.write_text(json.dumps([MIND2WEB]))
    task = load_task_list(array, "online_mind2web").tasks[0]
    assert (task.instruction, task.start_url) == ("Find a lamp.", "https://shop.example/")


@pytest.mark.parametrize(
    ("kind", "text", "complaint"),
    [
        ("webvoyager", json.dumps(MIND2WEB), "has no field 'id'"),
        ("webvoyager", f"{json.dumps(VOYAGER)}\n{json.dumps(VOYAGER)}", "more than once"),
        ("webvoyager", "{", "is not JSON"),
        ("webvoyager", "3", "has no field"),
        ("weblinx", "", "no task list kind"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, kind: str, text: str, complaint: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(text)
    with pytest.raises(TaskListError, match=complaint):
        load_task_list(path, kind)


def test_an_absent_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskListError, match="can't be read"):
        load_task_list(tmp_path / "none.jsonl", "webvoyager")


@pytest.mark.parametrize(
    ("name", "kind", "count"),
    [
        ("webvoyager/tasks.jsonl", "webvoyager", 598),
        ("online_mind2web/tasks.json", "online_mind2web", 300),
        ("deepshop/tasks_sample.jsonl", "deepshop", 4),
    ],
)
def test_the_public_lists_load_whole(name: str, kind: str, count: int) -> None:
    folder = os.environ.get("ORCHARD_DATA_DIR")
    if folder is None:
        pytest.skip("set ORCHARD_DATA_DIR to a folder with gui/webvoyager, gui/online_mind2web, gui/deepshop")
    assert len(load_task_list(Path(folder) / "gui" / name, kind).tasks) == count
