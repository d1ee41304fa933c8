"""Typed errors of engines."""

from orchard_core.errors import InfrastructureError, UsageError


class EngineError(InfrastructureError):
    """The engine failed to generate."""


class ContextOverflowError(UsageError):
    """The prompt leaves no room for a single new token; a normal end of an episode."""


class ModelFolderError(UsageError):
    """A model folder lacks something it needs (config, weights, tokenizer, chat template)."""


class RenderError(UsageError):
    """A chat template cannot render a conversation, or does not append as the renderer needs."""
