"""Typed errors of training."""

from orchard_core.errors import OrchardError, UsageError


class DivergedError(OrchardError):
    """Loss or gradient is no longer finite; the weights were left as they were before the step."""


class CheckpointError(UsageError):
    """A checkpoint is missing, incomplete, or belongs to another model, configuration or data."""
