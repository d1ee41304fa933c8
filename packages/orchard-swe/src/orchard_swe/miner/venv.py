"""A cached site-packages folder with pytest and a package's requirements."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from orchard_swe.errors import BaselineError
from orchard_swe.packages import Package
from orchard_swe.sdist import cache_dir

PYTEST = "pytest>=8,<9"
INSTALL_TIMEOUT_S = 600


def test_environment(package: Package) -> Path:
    """The folder, made on first use. Raises BaselineError when it cannot be installed."""
    wanted = sorted({PYTEST, *package.requires})
    label = hashlib.sha256("\n".join([sys.version, *wanted]).encode()).hexdigest()[:16]
    target = cache_dir().parent / "sites" / label
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        folder = Path(temporary) / "site"
        done = subprocess.run(
            [*_installer(), "--target", str(folder), *wanted],
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            cwd=temporary,  # elsewhere uv would apply the pins of a project that it finds
        )
        if done.returncode != 0:
            raise BaselineError(
                f"the test requirements of {package.key} cannot be installed: {done.stderr.strip()[-200:]}"
            )
        if not target.is_dir():
            folder.rename(target)
    return target


def _installer() -> list[str]:
    if shutil.which("uv"):
        return ["uv", "pip", "install", "--quiet", "--python", sys.executable]
    return [sys.executable, "-m", "pip", "install", "--quiet"]
