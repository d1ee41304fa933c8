"""Reads recipes: YAML with `extends` and dotted overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from orchard_core.recipe.errors import RecipeError, explain
from orchard_core.recipe.recipe import Recipe


def load_recipe(path: Path | str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe; `overrides` are "a.b=value" with YAML values, "stages.NAME.key" for a stage's key.

    Raises RecipeError, whose message is one sentence.
    """
    file = Path(path)
    data = read_with_parents(file, ())
    for override in overrides:
        apply_override(data, override)
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise explain(error, Recipe, str(file)) from error


def read_with_parents(path: Path, children: tuple[Path, ...]) -> dict[str, Any]:
    """A recipe's keys, on top of those that it extends."""
    resolved = path.resolve()
    if resolved in children:
        raise RecipeError(f"{path}: a recipe must not extend itself")
    data = read_yaml(path)
    parents = data.pop("extends", [])
    merged: dict[str, Any] = {}
    parents = [parents] if isinstance(parents, str) else parents
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise RecipeError(f"{path}: 'extends' takes a path or a list of paths")
    for parent in parents:
        merged = merge(merged, read_with_parents(path.parent / parent, (*children, resolved)))
    return merge(merged, data)


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RecipeError(f"there is no recipe {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"the recipe {path} can't be read: {error}") from error
    except yaml.YAMLError as error:
        raise RecipeError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise RecipeError(f"{path}: a recipe is a mapping of keys to values")
    return data


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` on top of `below`: mappings merge, stages merge by name, anything else replaces."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            merged[key] = merge(old, value)
        elif key == "stages" and isinstance(old, list) and isinstance(value, dict):
            merged[key] = merge_stages(old, value)
        else:
            merged[key] = value
    return merged


def merge_stages(stages: list[Any], changes: Mapping[str, Any]) -> list[Any]:
    """The stages with the changes to some of them, given by name; a change of null drops the stage."""
    names = [stage.get("name") for stage in stages if isinstance(stage, dict)]
    for name in changes:
        if name not in names:
            raise RecipeError(
                f"there is no stage {name!r} to change; the stages are {', '.join(map(str, names))}"
            )
    kept = []
    for stage in stages:
        own = str(stage.get("name")) if isinstance(stage, dict) else ""
        if own not in changes:
            kept.append(stage)
        elif changes[own] is not None:
            kept.append(merge(stage, changes[own]))
    return kept


def apply_override(data: dict[str, Any], override: str) -> None:
    """Set one dotted key in place."""
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise RecipeError(f"an override is written key=value, not {override!r}")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"the value of the override {override!r} is not valid YAML") from error
    place: Any = data
    *parents, last = key.split(".")
    for part in parents:
        place = _child(place, part, override)
    if not isinstance(place, dict):
        raise RecipeError(f"the override {override!r} goes into something that has no keys")
    place[last] = value


def _child(place: Any, part: str, override: str) -> Any:
    if isinstance(place, dict):
        return place.setdefault(part, {})
    if isinstance(place, list):
        for item in place:
            if isinstance(item, dict) and part in {item.get("name"), item.get("key")}:
                return item
    raise RecipeError(f"the override {override!r} names {part!r}, which is not there")
