"""task.yaml: all fields are accounted for, slips are named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchard_claw.tasks import ClawTaskError, load_claw_task

TEXT = """
task_id: X001_note
task_name: Write a note
version: "1"
prompt: {text: "Note the meeting at nine.", language: en}
tools:
  - {name: notes_add, description: Add a note, input_schema: {type: object}}
tool_endpoints:
  - {tool_name: notes_add, url: "http://127.0.0.1:9105/notes/add", method: POST}
services:
  - {name: notes, command: "python server.py", port: 9105, health_check: "/health", env: {PORT: "9105"}}
environment: {timeout_seconds: 60, max_turns: 5}
scoring_components:
  - {name: noted, weight: 1.0, check: {type: tool_called, tool_name: notes_add, min_calls: 1}}
safety_checks:
  - {type: tool_not_called, tool_name: mail_send, description: No mail}
"""


def test_a_task_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(TEXT)
    task = load_claw_task(path)
    assert task.environment.max_turns == 5
    assert task.services[0].env == {"PORT": "9105"}
    assert task.scoring_components[0].check.model_extra == {"tool_name": "notes_add", "min_calls": 1}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (TEXT + "difficulti: hard\n", "did you mean 'difficulty'"),
        (TEXT.replace("task_id", "id"), "task_id"),
        (TEXT.replace("tool_called", "tool_caled"), "scoring_components"),
        ("a: [", "not valid YAML"),
        ("3", "task"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(text)
    with pytest.raises(ClawTaskError, match=complaint):
        load_claw_task(path)


def test_the_public_tasks_load_whole() -> None:
    folder = os.environ.get("ORCHARD_DATA_DIR")
    if folder is None:
        pytest.skip("set ORCHARD_DATA_DIR to a folder with claw_eval/tasks/*/task.yaml")
    paths = sorted(Path(folder).glob("claw_eval/tasks/*/task.yaml"))
    assert len({load_claw_task(path).task_id for path in paths}) == len(paths) == 18
