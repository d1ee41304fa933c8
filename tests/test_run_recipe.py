"""`orchard run` end to end at the smallest size: all stages, resuming, reproducing, clear errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchard_core.trajectory.store import TrajectoryStore

pytestmark = [pytest.mark.slow, pytest.mark.needs_index]

ORCHARD = [str(Path(sys.executable).with_name("orchard"))]
RECIPE: dict[str, Any] = {
    "name": "smallest",
    "domain": {"name": "swe", "options": {"packages": ["roman", "webcolors"], "rows": 4}},
    "model": {
        "tiny": {"vocab_size": 600, "hidden": 32, "layers": 2, "heads": 2, "head_dim": 16, "experts": 2}
    },
    "engine": {"max_batch": 8, "train_threads": 1},
    "provider": {"concurrency": 4},
    "harnesses": [{"name": "react", "options": {"system": "Repair."}}],
    "limits": {"max_turns": 3, "timeout_s": 60},
    "sampling": {"max_tokens": 24},
    "stages": [
        {"name": "check", "kind": "validate", "tasks": 2},
        {"name": "practice", "kind": "pretrain", "conversations": 32, "batch_samples": 8},
        {"name": "demos", "kind": "demonstrate", "tasks": 6, "per_task": 2},
        {
            "name": "sft",
            "kind": "sft",
            "init": "practice",
            "source": "demos",
            "epochs": 2,
            "batch_samples": 4,
        },
        {
            "name": "rl",
            "kind": "rl",
            "init": "sft",
            "steps": 2,
            "prompts_per_step": 2,
            "max_draws": 2,
            "kl": 0.01,
            "group": {"n": 2, "max_samples": 4, "stride": 2},
        },
        {"name": "after", "kind": "evaluate", "model": "rl", "tasks": 3, "samples": 2},
        {"name": "value", "kind": "value", "init": "sft", "sources": ["demos", "rl"], "epochs": 1},
        {"name": "picked", "kind": "select", "value": "value", "source": "after", "n": 2},
        {"name": "report", "kind": "report", "example": "demos"},
    ],
}


def recipe_file(folder: Path, **keys: Any) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({**RECIPE, "run_dir": str(folder / "run"), **keys}))
    return path


def orchard(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ORCHARD, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, **(env or {})},
    )


def figures(folder: Path) -> dict[str, Any]:
    """metrics.json without what a clock measured."""
    metrics: dict[str, Any] = json.loads((folder / "run" / "metrics.json").read_text())
    del metrics["seconds"]
    for detail in metrics["details"].values():
        del detail["seconds"]
    return metrics


def stored(folder: Path) -> dict[str, float]:
    """When each stored rollout began."""
    return {t.id: t.started_at for t in TrajectoryStore(folder / "run" / "store").query()}


def completed(folder: Path) -> set[str]:
    """The stages that a run has recorded as done."""
    state = folder / "run" / "state.json"
    return set(json.loads(state.read_text())["stages"]) if state.exists() else set()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a whole run."""
    folder = tmp_path_factory.mktemp("whole")
    done = orchard("run", recipe_file(folder))
    assert done.returncode == 0, done.stderr
    return folder


def test_a_run_leaves_metrics_models_and_a_report(finished: Path) -> None:
    run = finished / "run"
    metrics = json.loads((run / "metrics.json").read_text())
    assert [stage["name"] for stage in metrics["stages"]] == ["after", "picked"]
    assert all(stage["ci_low"] <= stage["success"] <= stage["ci_high"] for stage in metrics["stages"])
    assert metrics["details"]["demos"]["success"] > 0.2
    assert metrics["details"]["sft"]["dropped_tokens"] == 0
    curves = [
        json.loads(line) for line in (run / "metrics" / "rl" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in curves] == [1, 2]
    assert metrics["details"]["rl"]["sampled_tokens"] == sum(line["sampled_tokens"] for line in curves)
    assert {path.name for path in (run / "models").iterdir()} >= {"base", "practice", "sft", "rl", "value"}
    page = (run / "report.html").read_text()
    assert "data:image/png;base64," in page
    assert "src='http" not in page
    assert "href" not in page


def test_a_finished_run_is_not_repeated(finished: Path) -> None:
    before = stored(finished)
    began = (finished / "run" / "state.json").read_bytes()
    assert orchard("run", finished / "recipe.yaml").returncode == 0
    assert stored(finished) == before
    assert (finished / "run" / "state.json").read_bytes() == began


def test_the_seed_reproduces_the_figures_and_another_seed_does_not(finished: Path, tmp_path: Path) -> None:
    assert orchard("run", recipe_file(tmp_path)).returncode == 0
    assert figures(tmp_path) == figures(finished)
    ours, theirs = (TrajectoryStore(f / "run" / "store").query(stage="rl") for f in (tmp_path, finished))
    sampled = [
        {t.id: [c.completion_ids.tolist() for c in t.calls] for t in found} for found in (ours, theirs)
    ]
    assert sampled[0] == sampled[1]


def wait_for(folder: Path, count: int, process: subprocess.Popen[str]) -> set[int]:
    """Until a run has stored `count` rollouts and has sandboxes open; returns those."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        enough = (folder / "run" / "store").exists() and len(stored(folder)) >= count
        if enough and (found := children(process.pid)):
            return found
        time.sleep(0.05)
    raise AssertionError(f"the run did not come so far: {process.poll()}")


def children(parent: int) -> set[int]:
    """Process ids of the sandboxes that a run has open (each begins with a bubblewrap)."""
    done = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False
    )
    return {int(pid) for pid in done.stdout.split()}


def wait_until_gone(pids: set[int]) -> None:
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "sandboxes outlived the run"
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "at"), [(signal.SIGKILL, 5), (signal.SIGKILL, 14), (signal.SIGINT, 8)])
def test_an_interrupted_run_continues_and_keeps_finished_rollouts(
    finished: Path, tmp_path: Path, number: signal.Signals, at: int
) -> None:
    path = recipe_file(tmp_path)
    process = subprocess.Popen([*ORCHARD, "run", str(path)], stderr=subprocess.PIPE, text=True)
    opened = wait_for(tmp_path, at, process)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "continues" in said
    assert "Traceback" not in said
    wait_until_gone(opened)
    kept = stored(tmp_path)
    assert orchard("run", path).returncode == 0
    after = stored(tmp_path)
    assert {name: after[name] for name in kept} == kept
    assert figures(tmp_path) == figures(finished)


@pytest.mark.parametrize(("done", "training"), [("check", "practice"), ("demos", "sft"), ("after", "value")])
def test_a_run_killed_while_a_model_trains_continues_with_the_same_figures(
    finished: Path, tmp_path: Path, done: str, training: str
) -> None:
    path = recipe_file(tmp_path)
    process = subprocess.Popen([*ORCHARD, "run", str(path)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while done not in completed(tmp_path):
        assert time.monotonic() < deadline, f"{done} did not come to its end"
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.wait(60)
    assert training not in completed(tmp_path)
    kept = stored(tmp_path) if (tmp_path / "run" / "store").exists() else {}
    assert orchard("run", path).returncode == 0
    after = stored(tmp_path)
    assert {name: after[name] for name in kept} == kept
    assert figures(tmp_path) == figures(finished)


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ({"domain": {"name": "swee"}}, "did you mean 'swe'?"),
        ({"domain": {"name": "swe", "options": {"packages": ["nosuch"]}}}, "nosuch"),
        ({"domain": {"name": "swe", "options": {"row": 3}}}, "did you mean 'rows'?"),
        ({"harnesses": [{"name": "reakt"}]}, "react"),
        ({"provider": {"kind": "bubblewarp"}}, "bubblewrap"),
        ({"model": {"folder": "no/such/folder"}}, "no/such/folder"),
        ({"run_dir": "/proc/nowhere"}, "/proc/nowhere"),
    ],
)
def test_wrong_input_gets_one_sentence(tmp_path: Path, keys: dict[str, Any], complaint: str) -> None:
    done = orchard("run", recipe_file(tmp_path, **keys))
    assert done.returncode == 1
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_run_folder_of_another_recipe_is_not_touched(finished: Path) -> None:
    done = orchard("run", finished / "recipe.yaml", "seed=7")
    assert done.returncode == 1
    assert "different recipe" in done.stderr


def test_a_machine_without_bubblewrap_is_told_what_to_install(tmp_path: Path) -> None:
    done = orchard("run", recipe_file(tmp_path), env={"PATH": str(tmp_path)})
    assert done.returncode == 1
    assert "bubblewrap" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_folder_without_a_tokenizer_is_named(finished: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    subprocess.run(["cp", "-r", str(finished / "run" / "models" / "base"), str(model)], check=True)
    for path in model.glob("token*"):
        path.unlink()
    done = orchard("run", recipe_file(tmp_path, model={"folder": str(model)}))
    assert done.returncode == 1
    assert "tokenizer" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
@pytest.mark.parametrize("size", ["64k", "400k", "1500k", "3m"])
def test_a_full_disk_is_said_in_one_sentence(tmp_path: Path, size: str) -> None:
    run = tmp_path / "run"
    run.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(run)], check=True)
    try:
        done = orchard("run", recipe_file(tmp_path))
    finally:
        subprocess.run(["umount", str(run)], check=True)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
