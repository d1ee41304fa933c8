"""Typed errors of the software-engineering domain; each sentence says what to do."""

from orchard_core.errors import UsageError


class PackageNotFoundError(UsageError):
    """The package index has no such package, version or source distribution."""


class ChecksumError(UsageError):
    """A fetched source distribution is not the one that the list names."""


class UnsafeArchiveError(UsageError):
    """An archive holds a path or an entry kind that must not be unpacked."""


class LayoutError(UsageError):
    """A source distribution has no importable package or no tests."""


class BaselineError(UsageError):
    """A package's own tests do not pass before any fault is planted."""


class InstanceError(UsageError):
    """An instance is unknown, malformed or no longer valid."""


class PatchError(UsageError):
    """A diff cannot be read or does not fit the files that it names."""
