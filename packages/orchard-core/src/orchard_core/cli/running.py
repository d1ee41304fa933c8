"""`orchard run`: runs a recipe and prints its table."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from orchard_core.cli.recipes import Overrides, RecipeFile
from orchard_core.errors import MissingExtraError
from orchard_core.recipe import Recipe, load_recipe


def run(
    file: RecipeFile,
    overrides: Overrides = None,
    fresh: Annotated[bool, typer.Option(help="Remove what an earlier run left, and begin anew.")] = False,
) -> None:
    """Run a recipe's stages. Interrupted at any point, the same command continues."""
    recipe = load_recipe(file, overrides or [])
    if fresh:
        shutil.rmtree(recipe.run_dir, ignore_errors=True)
    metrics = asyncio.run(_run(recipe))
    Console().print(result_table(metrics))
    report = Path(recipe.run_dir) / "report.html"
    if report.exists():
        typer.echo(f"report: {report}")


async def _run(recipe: Recipe) -> Mapping[str, Any]:
    # Here, not above: a recipe can be checked without torch.
    try:
        from transformers.utils import logging as transformers_logging

        from orchard_core.pipeline.progress import ProgressDisplay
        from orchard_core.pipeline.runner import run_recipe
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.startswith("orchard_"):
            raise
        raise MissingExtraError(missing.partition(".")[0], "train") from error

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    work = asyncio.ensure_future(run_recipe(recipe, ProgressDisplay()))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, work.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def result_table(metrics: Mapping[str, Any]) -> Table:
    """Success after each measuring stage, with 95 % intervals."""
    table = Table(title=f"{metrics['recipe']}, seed {metrics['seed']}, {metrics['seconds'] / 60:.1f} minutes")
    for column in ("stage", "success", "95 % interval", "tasks"):
        table.add_column(column, justify="left" if column == "stage" else "right")
    for stage in metrics["stages"]:
        interval = f"{100 * stage['ci_low']:.1f} to {100 * stage['ci_high']:.1f}"
        table.add_row(stage["name"], f"{100 * stage['success']:.1f} %", interval, str(stage["n"]))
    for pair in metrics["comparisons"]:
        interval = f"{100 * pair['ci_low']:+.1f} to {100 * pair['ci_high']:+.1f}"
        table.add_row(
            f"{pair['name']} - pass@1, paired", f"{100 * pair['difference']:+.1f}", interval, str(pair["n"])
        )
    return table
