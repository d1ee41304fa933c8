"""`orchard swe mine`, `validate` and `show`, on a tiny package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchard_core.errors import OrchardError
from orchard_swe.cli import app

RUN = CliRunner()


def call(*words: str) -> str:
    done = RUN.invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.output


def test_mine_validate_and_show_work_together(tiny: Path, tmp_path: Path) -> None:
    folder = str(tmp_path / "list")
    said = call("mine", "tinysum", "1.0", "--out", folder, "--limit", "2", "--split", "held_out")
    assert said.startswith("tinysum-1.0: kept 2;")
    assert call("validate", "--list", folder) == "2 of 2 instances are valid\n"
    listed = call("show", "--list", folder).splitlines()
    assert [line.split()[:2] for line in listed] == [
        ["tinysum-1.0-0001", "held_out"],
        ["tinysum-1.0-0002", "held_out"],
    ]
    assert "diff --git" not in call("show", "tinysum-1.0-0001", "--list", folder)
    assert "+++ b/tinysum.py" in call("show", "tinysum-1.0-0001", "--list", folder, "--gold")
    record = json.loads(call("show", "tinysum-1.0-0001", "--list", folder, "--swebench"))
    assert record["instance_id"] == "tinysum-1.0-0001"


def test_an_unknown_instance_is_a_typed_error(tiny: Path) -> None:
    done = RUN.invoke(app, ["show", "nothing-1"])
    assert isinstance(done.exception, OrchardError)
    assert "no instance 'nothing-1'" in str(done.exception)


@pytest.mark.parametrize("split", ["test", ""])
def test_a_bad_split_is_refused(tiny: Path, split: str) -> None:
    assert RUN.invoke(app, ["mine", "tinysum", "1.0", "--split", split]).exit_code == 2
