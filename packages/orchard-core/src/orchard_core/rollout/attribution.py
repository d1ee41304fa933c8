"""Whose failure was it? Turns what happened in a rollout into one typed outcome.

Infrastructure failures (sandbox, engine, proxy, a crash of the harness itself) abort a rollout: it
neither trains nor enters a baseline. All else is the agent's: malformed calls, limits, time-outs of its
commands, a bad patch, killing its own harness.
"""

from __future__ import annotations

from typing import Protocol

from orchard_core.engine.errors import EngineError
from orchard_core.env.errors import SandboxError
from orchard_core.errors import InfrastructureError
from orchard_core.trajectory.types import Outcome


class SessionEnd(Protocol):
    """What attribution reads of a sealed proxy session."""

    @property
    def incomplete(self) -> str | None:
        """Why the record of calls isn't whole; None when it is."""
        ...

    @property
    def ended_by(self) -> str | None:
        """The budget that ended the session, if one did."""
        ...


def from_error(error: InfrastructureError, phase: str) -> Outcome:
    """The outcome of a rollout that an error ended in `phase`."""
    if isinstance(error, SandboxError):
        cause = "sandbox"
    elif isinstance(error, EngineError):
        cause = "engine"
    else:
        cause = "infrastructure"
    return Outcome("aborted", cause, f"{phase}: {type(error).__name__}: {error}")


def attribute(harness: Outcome, session: SessionEnd) -> Outcome:
    """The final outcome, from the harness's own account and the proxy's.

    The proxy knows better in two cases: its record is not whole (then the rollout can't be trusted,
    whatever the harness made of it), or it refused calls because a budget was used up (then what the
    harness reports as a model error was the agent's limit).
    """
    if session.incomplete:
        return Outcome("aborted", "model_calls", session.incomplete, harness.exit_code)
    if session.ended_by and (harness.status == "aborted" or harness.cause == "format_error"):
        return Outcome("truncated", session.ended_by, harness.detail, harness.exit_code)
    return harness
