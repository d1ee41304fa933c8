"""Wheels of the tree's packages, and fresh environments to install them into."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


class Workshop:
    """Builds and installs outside the workspace, as a user does: nothing here sees its pins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._wheels: dict[Path, Path] = {}

    def run(self, *command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command; a failure shows what it said."""
        env = {key: value for key, value in os.environ.items() if key not in {"VIRTUAL_ENV", "PYTHONPATH"}}
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
        return done

    def uv(self, *arguments: str | Path) -> str:
        program = shutil.which("uv") or ROOT / ".cache/tools/bin/uv"
        return self.run(program, "--quiet", *arguments).stdout

    def wheel(self, source: Path) -> Path:
        """The wheel of a package's folder, built once."""
        if source not in self._wheels:
            out = self.folder / "wheels" / source.name
            self.uv("build", "--wheel", "--out-dir", out, source)
            (self._wheels[source],) = out.glob("*.whl")
        return self._wheels[source]

    def environment(self, name: str, *wheels: Path) -> Path:
        """A fresh virtual environment with these wheels and what they ask for; returns its bin folder."""
        folder = self.folder / name
        self.uv("venv", "--python", sys.executable, folder)
        self.uv("pip", "install", "--python", folder, *wheels)
        return folder / "bin"


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"))
