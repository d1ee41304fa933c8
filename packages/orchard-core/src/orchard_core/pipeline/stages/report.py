"""The report stage: writes report.html from what the other stages left."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from orchard_core.pipeline.context import RunContext
from orchard_core.recipe import ReportStage
from orchard_core.train.metrics import read_metrics
from orchard_core.trajectory.types import Trajectory

REPORT_FILE = "report.html"
CURVES = {
    "Reward during reinforcement learning": ("success", "positive_share"),
    "Group balance: groups trained, rollouts saved by stopping early": ("groups_trained", "early_stopped"),
    "Turns of an episode": ("turns",),
    "Loss": ("loss",),
}


async def run(context: RunContext, stage: ReportStage) -> Mapping[str, Any]:
    from orchard_core.pipeline.runner import METRICS_FILE
    from orchard_core.ui.report import write_report

    metrics = orjson.loads((context.run_dir / METRICS_FILE).read_bytes())
    example = await asyncio.to_thread(choose_example, context, stage.example)
    path = context.run_dir / REPORT_FILE
    await asyncio.to_thread(write_report, path, metrics, read_curves(context), example)
    return {"path": REPORT_FILE}


def read_curves(context: RunContext) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """The series of `CURVES` that the training stages logged."""
    rows: dict[str, list[dict[str, float]]] = {}
    for folder in sorted((context.run_dir / "metrics").glob("*")):
        rows[folder.name] = read_metrics(folder)
    return {
        title: {
            f"{stage} {key}": series
            for stage, found in rows.items()
            for key in keys
            if (series := [(row["step"], row[key]) for row in found if key in row])
        }
        for title, keys in CURVES.items()
    }


def choose_example(context: RunContext, stage: str | None) -> Trajectory | None:
    """The successful trajectory of the stage with the most turns: it shows a search, not a lucky hit."""
    found = context.store.query(run=context.run_id, stage=stage)
    return longest([t for t in found if t.reward.verdict == "success"] or found)


def longest(trajectories: Sequence[Trajectory]) -> Trajectory | None:
    return max(trajectories, key=lambda t: (len(t.calls), t.id), default=None)
