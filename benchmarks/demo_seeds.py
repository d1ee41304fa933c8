"""The full demo under several seeds: held-out success after every stage, and whether the order repeats.

python benchmarks/demo_seeds.py --out demo.json [--seeds 0 1 2] [--at-once 2]

A run takes the better part of an hour on two cores; one that was interrupted continues.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from machine import machine

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "recipes/demo/full.yaml"
RISING = ("untrained", "after-sft", "after-rl")


def run_seed(seed: int) -> dict[str, Any]:
    """Run the recipe; returns what its metrics.json holds."""
    folder = ROOT / f"runs/demo-full-seed-{seed}"
    program = Path(sys.executable).with_name("orchard")
    subprocess.run([str(program), "run", str(RECIPE), f"seed={seed}", f"run_dir={folder}"], check=True)
    metrics: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return metrics


def verdicts(metrics: Mapping[str, Any]) -> dict[str, bool]:
    """Which of the demo's claims hold in one run: every rise is significant at 95 %."""
    stages = {stage["name"]: stage for stage in metrics["stages"]}
    found = {
        f"{low} < {high}, intervals apart": stages[low]["ci_high"] < stages[high]["ci_low"]
        for low, high in pairwise(RISING)
    }
    (paired,) = (c for c in metrics["comparisons"] if c["name"] == "selected")
    return {**found, "selected@4 > pass@1, paired": paired["ci_low"] > 0}


def table(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "stages": metrics["stages"],
        "comparisons": metrics["comparisons"],
        "holds": verdicts(metrics),
        "minutes": round(metrics["seconds"] / 60, 1),
        "seconds_by_stage": {
            name: round(detail["seconds"], 1) for name, detail in metrics["details"].items()
        },
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side (each needs a core)")
    options = parser.parse_args(arguments)
    note = machine()
    with ThreadPoolExecutor(options.at_once) as pool:
        runs = list(pool.map(run_seed, options.seeds))
    results = {str(seed): table(run) for seed, run in zip(options.seeds, runs, strict=True)}
    record = {
        "benchmark": "demo",
        "machine": note,
        "recipe": str(RECIPE.relative_to(ROOT)),
        "runs_at_once": options.at_once,
        "same_order_in_every_seed": all(all(run["holds"].values()) for run in results.values()),
        "results": results,
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({seed: run["holds"] for seed, run in results.items()}, indent=1))


if __name__ == "__main__":
    main()
