"""Typed errors of value models."""

from orchard_core.errors import UsageError


class LeakageError(UsageError):
    """A task or package is on both sides of a split."""


class ValueFolderError(UsageError):
    """A folder holds no value model."""
