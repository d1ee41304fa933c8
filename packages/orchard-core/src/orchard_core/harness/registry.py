"""Finds harness bindings by name: the built-in ones and those of the entry point group "orchard.harnesses"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any

from orchard_core.errors import UsageError
from orchard_core.harness.mini_swe_agent import mini_from_options
from orchard_core.harness.protocol import Harness
from orchard_core.harness.react import react_from_options

GROUP = "orchard.harnesses"
HarnessFactory = Callable[[Mapping[str, Any]], Harness]
"""What an entry point gives: it turns a recipe's options into a binding."""

BUILT_IN: Mapping[str, HarnessFactory] = {"react": react_from_options, "mini-swe-agent": mini_from_options}


class UnknownHarnessError(UsageError):
    """No built-in or installed harness has the name."""


def available_harnesses() -> list[str]:
    """All names, sorted."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def load_harness(name: str, options: Mapping[str, Any] | None = None) -> Harness:
    """The binding `name` with `options`. Raises UsageError (UnknownHarnessError for the name)."""
    if name in BUILT_IN:
        return BUILT_IN[name](options or {})
    for point in entry_points(group=GROUP):
        if point.name == name:
            factory: HarnessFactory = point.load()
            return factory(options or {})
    known = available_harnesses()
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
    raise UnknownHarnessError(f"there is no harness {name!r}; {hint}")
