"""Whose failure was it? Turns what happened in a rollout into one typed outcome.

Infrastructure failures (sandbox, engine, proxy, a crash of the harness itself) abort a rollout: it
neither trains nor enters a baseline. All else is the agent's: malformed calls, limits, time-outs of its
commands, a bad patch, killing its own harness.
"""

from __future__ import annotations

from dataclasses import replace

from orchard_core.engine.errors import EngineError
from orchard_core.env.errors import SandboxError
from orchard_core.errors import InfrastructureError
from orchard_core.proxy import SealedSession
from orchard_core.trajectory.types import Outcome


def from_error(error: InfrastructureError, phase: str) -> Outcome:
    """The outcome of a rollout that an error ended in `phase`."""
    if isinstance(error, SandboxError):
        cause = "sandbox"
    elif isinstance(error, EngineError):
        cause = "engine"
    else:
        cause = "infrastructure"
    return Outcome("aborted", cause, f"{phase}: {type(error).__name__}: {error}")


def attribute(harness: Outcome, session: SealedSession) -> Outcome:
    """The final outcome, from the harness's own account and the proxy's.

    The proxy knows better in two cases: its record is not whole (then the rollout can't be trusted,
    whatever the harness made of it), or a limit that it keeps ended the episode (then what the harness
    reports as a model error, or as replies without a call, was that limit).
    """
    if session.incomplete:
        return Outcome("aborted", "model_calls", session.incomplete, harness.exit_code)
    if session.ended_by is None:
        return harness
    if harness.status == "truncated":
        return replace(harness, cause=session.ended_by)
    if harness.cause in ("model_error", "format_error"):
        return Outcome("truncated", session.ended_by, harness.detail, harness.exit_code)
    return harness
