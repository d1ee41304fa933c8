"""Sandboxes: specs, handles, providers, and a synchronous facade.

`open_provider("bubblewrap")` gives a `Provider`; its `create(SandboxSpec(...))` a running `Sandbox`.
"""

from orchard_core.env.errors import (
    ConnectionLostError,
    ExecConflictError,
    ProviderUnavailableError,
    SandboxError,
    SandboxExpiredError,
    SandboxFileError,
    SandboxGoneError,
    SandboxIdentityError,
    SandboxPortError,
    SandboxStartError,
    SandboxUnreachableError,
    UnknownExecError,
)
from orchard_core.env.handle import (
    DEFAULT_MAX_OUTPUT,
    ExecResult,
    FileInfo,
    JobStatus,
    LeaseLeft,
    OutputCallback,
    Provider,
    Sandbox,
    SandboxStatistics,
    Verdict,
    Window,
)
from orchard_core.env.registry import open_provider
from orchard_core.env.spec import Mount, SandboxSpec
from orchard_core.env.sync import SyncProvider, SyncSandbox

__all__ = [
    "DEFAULT_MAX_OUTPUT",
    "ConnectionLostError",
    "ExecConflictError",
    "ExecResult",
    "FileInfo",
    "JobStatus",
    "LeaseLeft",
    "Mount",
    "OutputCallback",
    "Provider",
    "ProviderUnavailableError",
    "Sandbox",
    "SandboxError",
    "SandboxExpiredError",
    "SandboxFileError",
    "SandboxGoneError",
    "SandboxIdentityError",
    "SandboxPortError",
    "SandboxSpec",
    "SandboxStartError",
    "SandboxStatistics",
    "SandboxUnreachableError",
    "SyncProvider",
    "SyncSandbox",
    "UnknownExecError",
    "Verdict",
    "Window",
    "open_provider",
]
