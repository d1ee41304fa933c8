"""Finds installed domains through the entry point group "orchard.domains"."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.metadata import entry_points

from orchard_core.domain.protocol import Domain
from orchard_core.errors import UsageError

GROUP = "orchard.domains"


class UnknownDomainError(UsageError):
    """No installed package offers the domain."""


def available_domains() -> list[str]:
    """The names of all installed domains, sorted."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def load_domain(name: str) -> Domain:
    """Import and instantiate a domain by name. Raises UnknownDomainError."""
    for point in entry_points(group=GROUP):
        if point.name == name:
            domain = point.load()()
            if not isinstance(domain, Domain):
                raise UsageError(f"the entry point of domain {name!r} does not give a Domain")
            return domain
    known = available_domains()
    near = get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"installed domains: {', '.join(known) or 'none'}"
    raise UnknownDomainError(f"there is no domain {name!r}; {hint}")
