"""Each package stands by itself: its wheel is whole, and it brings no more than it must."""

from __future__ import annotations

import json
import subprocess
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.needs_index]

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))


def tracked_sources(package: Path) -> set[str]:
    """The package's files as its wheel must name them."""
    listed = subprocess.run(["git", "ls-files", "-z", "src"], cwd=package, capture_output=True, check=True)
    names = listed.stdout.decode().split("\0")
    return {str(PurePosixPath(name).relative_to("src")) for name in names if name}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_the_wheel_holds_every_source_file_and_nothing_else(package: Path, workshop: Any) -> None:
    with zipfile.ZipFile(workshop.wheel(package)) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert tracked_sources(package)
    assert held == tracked_sources(package)


def test_the_software_engineering_domain_installs_without_any_trainer(workshop: Any) -> None:
    wheels = [workshop.wheel(ROOT / "packages" / name) for name in ("orchard-core", "orchard-swe")]
    programs = workshop.environment("swe", *wheels)
    listed = json.loads(workshop.uv("pip", "list", "--format", "json", "--python", programs / "python"))
    installed = {entry["name"] for entry in listed}
    assert {"orchard-core", "orchard-swe"} <= installed
    assert not installed & {"torch", "transformers", "triton", "tensorboard", "matplotlib"}
    assert workshop.run(programs / "orchard", "domains").stdout.split() == ["swe"]
    assert "mine" in workshop.run(programs / "orchard", "swe", "--help").stdout
    code = "from orchard_swe.instances import load_instances; print(len(load_instances('held_out')) > 0)"
    assert workshop.run(programs / "python", "-c", code).stdout.strip() == "True"


@pytest.fixture(scope="module")
def core(workshop: Any) -> Path:
    """The bin folder of a fresh environment with nothing but the core."""
    programs: Path = workshop.environment("core", workshop.wheel(ROOT / "packages/orchard-core"))
    return programs


def test_what_needs_an_extra_names_it(core: Path, workshop: Any) -> None:
    """A recipe can be checked without torch; running one says what to install, in one sentence."""
    recipe = ROOT / "recipes/demo/small.yaml"
    assert "no mistakes" in workshop.run(core / "orchard", "recipe", "check", recipe).stdout
    done = workshop.run(core / "orchard", "run", recipe, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "orchard-core[train]" in done.stderr


def test_a_mistyped_command_is_explained_without_a_traceback(core: Path, workshop: Any) -> None:
    done = workshop.run(core / "orchard", "rnu", check=False)
    assert done.returncode == 2
    assert "No such command 'rnu'" in done.stderr
    assert "Traceback" not in done.stderr
