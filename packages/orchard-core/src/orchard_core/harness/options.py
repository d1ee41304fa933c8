"""Strict reading of a harness's options, as they come from a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from orchard_core.errors import UsageError
from orchard_core.harness.style import ChatStyle


def reject_unknown(harness: str, options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raises UsageError for the first key that is not `known`, naming the nearest."""
    names = sorted(known)
    for key in options:
        if key not in names:
            near = get_close_matches(str(key), names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known options: {', '.join(names)}"
            raise UsageError(f"harness {harness!r} has no option {key!r}; {hint}")


def style_from(harness: str, options: Mapping[str, Any]) -> ChatStyle:
    """A ChatStyle from a mapping; texts must be strings and sizes integers."""
    kinds = {field.name: int if field.name.startswith("output_") else str for field in fields(ChatStyle)}
    reject_unknown(harness, options, kinds)
    for name, value in options.items():
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise UsageError(f"option {name!r} of harness {harness!r} must be of type {kinds[name].__name__}")
    return ChatStyle(**options)


STYLE_OPTIONS = tuple(field.name for field in fields(ChatStyle))
