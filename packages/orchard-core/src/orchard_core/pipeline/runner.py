"""Runs a recipe: its stages in order, each once, resuming after any interruption."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import orjson

from orchard_core.domain import load_domain
from orchard_core.errors import UsageError
from orchard_core.pipeline.context import RunContext, open_context
from orchard_core.pipeline.models import make_base
from orchard_core.pipeline.progress import ProgressDisplay
from orchard_core.pipeline.state import RunState, write_atomically
from orchard_core.recipe import Recipe

log = logging.getLogger(__name__)

GROUP = "orchard.stages"
METRICS_FILE = "metrics.json"

StageRun = Callable[[RunContext, Any], Awaitable[Mapping[str, Any]]]


def load_stage(kind: str) -> StageRun:
    """The function of a stage kind, from the entry point group "orchard.stages"."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    if kind not in points:
        near = get_close_matches(kind, list(points), 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(points))}"
        raise UsageError(f"no installed package runs stages of kind {kind!r}; {hint}")
    run: StageRun = points[kind].load()
    return run


def fingerprint(recipe: Recipe) -> str:
    """A hash of everything in the recipe that changes what a run computes."""
    fields = recipe.model_dump(mode="json", exclude={"run_dir"})
    return hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


async def run_recipe(recipe: Recipe, progress: ProgressDisplay) -> Mapping[str, Any]:
    """Run every stage that has not finished; returns what is in the run's metrics.json.

    Raises UsageError for a run folder of another recipe, OrchardError for whatever stops a stage.
    """
    run_dir = Path(recipe.run_dir)
    state = RunState(run_dir, fingerprint(recipe))
    runs = [(stage, load_stage(stage.kind)) for stage in recipe.stages]
    _make_model(recipe, run_dir)
    async with open_context(recipe, run_dir, progress) as context:
        for stage, run in runs:
            if state.result(stage.name) is not None:
                continue
            began = time.monotonic()
            log.info("stage begins", extra={"stage": stage.name, "kind": stage.kind})
            result = await run(context, stage)
            state.finish(stage.name, {**result, "kind": stage.kind, "seconds": time.monotonic() - began})
            write_metrics(recipe, run_dir, state)
    return write_metrics(recipe, run_dir, state)


def _make_model(recipe: Recipe, run_dir: Path) -> None:
    domain = load_domain(recipe.domain.name)
    tasks = list(domain.tasks("train", recipe.domain.options))
    if not tasks:
        raise UsageError(f"domain {domain.name!r} gives no training tasks for these options")
    make_base(recipe.model, run_dir / "models", domain, tasks, recipe.seed)


def write_metrics(recipe: Recipe, run_dir: Path, state: RunState) -> Mapping[str, Any]:
    """Write metrics.json: the success of every measuring stage, and each stage's own figures."""
    results = {stage.name: state.result(stage.name) for stage in recipe.stages}
    done = {name: dict(result) for name, result in results.items() if result is not None}
    metrics = {
        "recipe": recipe.name,
        "seed": recipe.seed,
        "stages": [
            {"name": name, **{key: result[key] for key in ("success", "ci_low", "ci_high", "n")}}
            for name, result in done.items()
            if result["kind"] in {"evaluate", "select"}
        ],
        "comparisons": [
            {"name": name, **result["paired"]} for name, result in done.items() if "paired" in result
        ],
        "details": done,
        "seconds": sum(result["seconds"] for result in done.values()),
    }
    write_atomically(run_dir / METRICS_FILE, orjson.dumps(metrics, option=orjson.OPT_INDENT_2))
    return metrics
