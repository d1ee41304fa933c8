"""Recipe errors: one sentence that names the file, the key and the remedy."""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, ValidationError

from orchard_core.errors import UsageError


class RecipeError(UsageError):
    """A recipe can't be read or is wrong."""


def explain(error: ValidationError, model: type[BaseModel], source: str) -> RecipeError:
    """The first problem of a validation, in one sentence."""
    # A misspelt key is also a missing one where it is required: the slip itself says more.
    problems = sorted(error.errors(), key=lambda problem: problem["type"] != "extra_forbidden")
    problem = problems[0]
    location = [part for part in problem["loc"] if not _is_tag(part)]
    key = ".".join(map(str, location))
    if problem["type"] == "extra_forbidden":
        known = known_keys(model, problem["loc"][:-1])
        near = get_close_matches(str(location[-1]), known, 1, cutoff=0.0)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return RecipeError(f"{source}: unknown key {key!r}{hint}")
    if problem["type"] == "missing":
        return RecipeError(f"{source}: the key {key!r} is missing")
    where = f"{key!r}: " if key else ""
    return RecipeError(f"{source}: {where}{problem['msg'].removeprefix('Value error, ')}")


def _is_tag(part: int | str) -> bool:
    return isinstance(part, str) and part in _stage_models()


def _stage_models() -> dict[str, type[BaseModel]]:
    from orchard_core.recipe.stages import Stage

    union = typing.get_args(Stage)[0]
    return {typing.get_args(m.model_fields["kind"].annotation)[0]: m for m in typing.get_args(union)}


def known_keys(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """The keys allowed at a place of the schema; a stage is found by its kind, which pydantic puts in the path."""
    current: type[BaseModel] | None = model
    for part in path:
        if current is None:
            current = _stage_models().get(str(part))
        elif isinstance(part, str) and part in current.model_fields:
            current = _section_of(current.model_fields[part].annotation)
    return sorted(current.model_fields) if current is not None else []


def _section_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in {list, typing.Union, types.UnionType}:
        found = (_section_of(argument) for argument in typing.get_args(annotation))
        return next((section for section in found if section is not None), None)
    return None
