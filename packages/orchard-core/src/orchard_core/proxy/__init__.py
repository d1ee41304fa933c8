"""The recording proxy: the model endpoint that harnesses talk to, which records every call as token facts."""

from orchard_core.proxy.errors import CallRefused
from orchard_core.proxy.server import RecordingProxy
from orchard_core.proxy.session import (
    DroppedAttempt,
    EndedBy,
    SealedSession,
    Session,
    SessionPolicy,
    derive_seed,
)

__all__ = [
    "CallRefused",
    "DroppedAttempt",
    "EndedBy",
    "RecordingProxy",
    "SealedSession",
    "Session",
    "SessionPolicy",
    "derive_seed",
]
