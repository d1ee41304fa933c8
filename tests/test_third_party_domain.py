"""The example domain, as a third party would have it: built, installed beside the core, found and run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.needs_index]

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def programs(workshop: Any) -> Path:
    """The bin folder of a fresh environment with the core and the example, copied out of this tree."""
    source = workshop.folder / "third_party_domain"
    shutil.copytree(ROOT / "examples/third_party_domain", source)
    wheels = [workshop.wheel(ROOT / "packages/orchard-core"), workshop.wheel(source)]
    found: Path = workshop.environment("third-party", *wheels)
    return found


def test_it_is_found_by_its_entry_point(programs: Path, workshop: Any) -> None:
    assert workshop.run(programs / "orchard", "domains").stdout.split() == ["sums"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (None, "sums-train-0: completed (submitted), 2 calls, success"),
        ("echo wrong > sum.txt", "sums-train-0: completed (submitted), 2 calls, failure"),
        ("true", "sums-train-0: completed (no_result), 2 calls, failure"),
    ],
    ids=["right", "wrong", "nothing"],
)
def test_a_rollout_of_it_runs_in_a_real_sandbox(
    programs: Path, workshop: Any, command: str | None, said: str
) -> None:
    script = workshop.folder / "third_party_domain/try_it.py"
    done = workshop.run(programs / "python", script, *([command] if command else []))
    assert done.stdout.strip() == said


def test_its_tasks_repeat_and_its_splits_are_apart(programs: Path, workshop: Any) -> None:
    code = (
        "from orchard_core.domain import load_domain; d = load_domain('sums');"
        "print(d.tasks('train', {}) == d.tasks('train', {}), len(d.tasks('train', {'limit': 3})),"
        "{t.id for t in d.tasks('train', {})} & {t.id for t in d.tasks('held_out', {})} == set())"
    )
    assert workshop.run(programs / "python", "-c", code).stdout.strip() == "True 3 True"
