"""The checks that `make check` runs find what they are there to find."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(tool: str, root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "tools" / tool), str(root)], capture_output=True, text=True, check=False
    )


def plant(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        (
            "orchard-core/src/orchard_core/train/a.py",
            "import orchard_core.rollout.runner\n",
            "must not import rollout",
        ),
        ("orchard-core/src/orchard_core/domain/a.py", "def f():\n    import torch\n", "must stay light"),
        (
            "orchard-core/src/orchard_core/rollout/a.py",
            "from orchard_swe import domain\n",
            "domain orchard_swe",
        ),
        ("orchard-gui/src/orchard_gui/a.py", "import orchard_claw\n", "domain orchard_claw"),
        ("orchard-core/src/orchard_core/cellar/a.py", "import orchard_core.errors\n", "no layer yet"),
        ("orchard-core/src/orchard_core/env/a.py", "x = 1\n" * 500, "500 lines"),
    ],
)
def test_a_wrong_import_or_an_overlong_file_is_named(
    tmp_path: Path, name: str, text: str, complaint: str
) -> None:
    plant(tmp_path / "packages", name, text)
    done = run("check_imports.py", tmp_path)
    assert done.returncode == 1
    assert complaint in done.stdout


def test_imports_in_the_right_direction_pass(tmp_path: Path) -> None:
    plant(
        tmp_path / "packages",
        "orchard-core/src/orchard_core/rollout/a.py",
        "import orchard_core.env.handle\nimport torch\n",
    )
    assert run("check_imports.py", tmp_path).returncode == 0


def test_a_registry_host_in_the_tree_is_named(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    plant(tmp_path, "notes.md", "see https://pypi.org/simple\n")
    subprocess.run(["git", "add", "notes.md"], cwd=tmp_path, check=True)
    done = run("check_tree.py", tmp_path)
    assert done.returncode == 1
    assert "notes.md:1" in done.stdout
