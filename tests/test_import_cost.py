"""`import orchard_core` is cheap and pulls in nothing heavy; so are the light rooms."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "kubernetes", "fastapi", "deltalake", "matplotlib")


def in_fresh_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    "module", ["orchard_core", "orchard_core.domain", "orchard_core.trajectory", "orchard_core.recipe"]
)
def test_the_light_rooms_pull_in_no_heavy_package(module: str) -> None:
    loaded = in_fresh_python(f"import sys, {module}; print(*[n for n in {HEAVY!r} if n in sys.modules])")
    assert loaded == ""


def test_importing_the_core_costs_less_than_300_ms_of_processor_time() -> None:
    code = "import time; begin = time.process_time(); import orchard_core; print(time.process_time() - begin)"
    assert min(float(in_fresh_python(code)) for _ in range(3)) < 0.3
