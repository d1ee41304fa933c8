"""Options of plug-ins, as a recipe or the command line gives them, turned into typed dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from orchard_core.errors import UsageError

Options = TypeVar("Options")


def options_from(kind: type[Options], options: Mapping[str, Any], whose: str) -> Options:
    """A dataclass of options.

    Raises UsageError for a name that it lacks, naming the nearest, and for a value of another type.
    """
    hints = get_type_hints(kind)
    values = {}
    for name, value in options.items():
        if name not in hints:
            near = get_close_matches(name, sorted(hints), 1, cutoff=0.0)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"{whose} has no option {name!r}{hint}")
        try:
            values[name] = TypeAdapter(hints[name]).validate_python(value, strict=True)
        except ValidationError as error:
            wanted = getattr(hints[name], "__name__", None) if isinstance(hints[name], type) else hints[name]
            raise UsageError(f"option {name!r} of {whose} must be {wanted}, not {value!r}") from error
    return kind(**values)
