"""Typed errors of the trajectory store."""

from orchard_core.errors import InfrastructureError


class StoreError(InfrastructureError):
    """The store can't be read or written; the message says where and why."""
