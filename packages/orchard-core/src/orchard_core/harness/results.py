"""Reading what a harness left behind, and what its death by signal means."""

from __future__ import annotations

import json
import signal
from typing import Any

from orchard_core.env.errors import SandboxFileError
from orchard_core.env.handle import ExecResult, Sandbox
from orchard_core.trajectory.types import Outcome


async def read_json(sandbox: Sandbox, path: str) -> dict[str, Any]:
    """A JSON object from a sandbox file; empty when it is missing or malformed (the agent shares the disk)."""
    try:
        value = json.loads(await sandbox.read_file(path))
    except (SandboxFileError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def killed_from_inside(launched: ExecResult) -> Outcome | None:
    """The outcome of a harness that a signal ended, else None.

    Nothing outside sends a harness signals except at its time-out, and a sandbox that goes away
    raises; so the signal came from a command of the agent, or from the memory limit it filled.
    """
    code = launched.exit_code
    if code is None or code >= 0:
        return None
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return Outcome("completed", "harness_killed", name, code)
