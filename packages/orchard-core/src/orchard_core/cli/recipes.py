"""`orchard recipe`: check a recipe, or show it with all that it inherits and defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import yaml

from orchard_core.recipe import load_recipe

app = typer.Typer(help="Check and show recipes.", no_args_is_help=True)

RecipeFile = Annotated[Path, typer.Argument(help="The recipe, a YAML file.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Overrides, as key.key=value.")]


@app.command("check")
def check(file: RecipeFile, overrides: Overrides = None) -> None:
    """Say whether a recipe is right."""
    recipe = load_recipe(file, overrides or [])
    typer.echo(f"{recipe.name}: {len(recipe.stages)} stages, no mistakes")


@app.command("show")
def show(file: RecipeFile, overrides: Overrides = None) -> None:
    """Print a recipe whole."""
    recipe = load_recipe(file, overrides or [])
    typer.echo(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False), nl=False)
