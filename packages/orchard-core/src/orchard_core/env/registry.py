"""Finds sandbox providers by name: the built-in ones and those of the entry point group "orchard.providers"."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from orchard_core.env.handle import Provider
from orchard_core.errors import UsageError

GROUP = "orchard.providers"
ProviderFactory = Callable[[Mapping[str, Any]], Provider]
"""What an entry point gives: it turns a recipe's options into a provider."""

# Where each factory is, so that importing this package costs nothing of what a provider needs.
BUILT_IN: Mapping[str, str] = {
    "bubblewrap": "orchard_core.env.providers.bubblewrap:bubblewrap_from_options",
    "kubernetes": "orchard_core.env.providers.kubernetes.provider:kubernetes_from_options",
    "docker": "orchard_core.env.providers.docker:docker_from_options",
}


def available_providers() -> list[str]:
    """All names, sorted."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def open_provider(name: str, options: Mapping[str, Any] | None = None) -> Provider:
    """The provider called `name`, with its options. Raises UsageError for what is unknown."""
    if name in BUILT_IN:
        module, _, factory = BUILT_IN[name].partition(":")
        built: ProviderFactory = getattr(import_module(module), factory)
        return built(options or {})
    for point in entry_points(group=GROUP):
        if point.name == name:
            installed: ProviderFactory = point.load()
            return installed(options or {})
    known = available_providers()
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
    raise UsageError(f"there is no sandbox provider {name!r}; {hint}")
