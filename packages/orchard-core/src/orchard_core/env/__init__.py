"""Sandboxes: specs, handles, providers, and a synchronous facade.

`open_provider("bubblewrap")` gives a `Provider`; its `create(SandboxSpec(...))` a running `Sandbox`.
"""

from orchard_core.env.errors import (
    ExecConflictError,
    ProviderUnavailableError,
    SandboxError,
    SandboxFileError,
    SandboxGoneError,
    SandboxStartError,
)
from orchard_core.env.handle import (
    DEFAULT_MAX_OUTPUT,
    ExecResult,
    FileInfo,
    OutputCallback,
    Provider,
    Sandbox,
)
from orchard_core.env.registry import open_provider
from orchard_core.env.spec import Mount, SandboxSpec
from orchard_core.env.sync import SyncProvider, SyncSandbox

__all__ = [
    "DEFAULT_MAX_OUTPUT",
    "ExecConflictError",
    "ExecResult",
    "FileInfo",
    "Mount",
    "OutputCallback",
    "Provider",
    "ProviderUnavailableError",
    "Sandbox",
    "SandboxError",
    "SandboxFileError",
    "SandboxGoneError",
    "SandboxSpec",
    "SandboxStartError",
    "SyncProvider",
    "SyncSandbox",
    "open_provider",
]
