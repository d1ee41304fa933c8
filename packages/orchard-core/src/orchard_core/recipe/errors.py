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
    problem = error.errors()[0]
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
    """The keys allowed at a place of the schema."""
    current: type[BaseModel] | None = model
    for part in path:
        if isinstance(part, int) or current is None:
            continue
        if part in _stage_models():
            current = _stage_models()[str(part)]
        elif part in current.model_fields:
            current = _section_of(current.model_fields[str(part)].annotation)
    return sorted(current.model_fields) if current is not None else []


def _section_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in {list, typing.Union, types.UnionType}:
        found = (_section_of(argument) for argument in typing.get_args(annotation))
        return next((section for section in found if section is not None), None)
    return None
