"""Providers by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from orchard_core.env.handle import Provider
from orchard_core.errors import UsageError

_NAMES = ("bubblewrap",)


def open_provider(name: str, options: Mapping[str, Any] | None = None) -> Provider:
    """The provider called `name`; "bubblewrap" takes no options. Raises UsageError for what is unknown."""
    if name not in _NAMES:
        near = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_NAMES)}"
        raise UsageError(f"there is no sandbox provider {name!r}; {hint}")
    if options:
        raise UsageError(f"the bubblewrap provider takes no option {', '.join(map(repr, sorted(options)))}")
    # Imported here, so that importing this package costs nothing of what a provider needs.
    from orchard_core.env.providers.bubblewrap import BubblewrapProvider

    return BubblewrapProvider()
