"""Typed errors of the environment layer."""

from orchard_core.errors import InfrastructureError, UsageError


class SandboxError(InfrastructureError):
    """A sandbox could not do what was asked, for a reason that is not the command's."""


class ProviderUnavailableError(SandboxError):
    """The provider cannot work on this machine (not installed, not permitted)."""


class SandboxStartError(SandboxError):
    """The sandbox did not come up."""


class SandboxGoneError(SandboxError):
    """The sandbox ended (closed, killed, out of time) while it was needed."""


class SandboxExpiredError(SandboxGoneError):
    """The sandbox's lease ran out: its time limit, or its limit on idleness."""


class ConnectionLostError(SandboxGoneError):
    """The connection to the sandbox broke; whether the sandbox still exists is the provider's to say."""


class SandboxUnreachableError(SandboxError):
    """The sandbox does not answer at present; another try may help."""


class SandboxIdentityError(SandboxError):
    """What answers at the sandbox's address is another sandbox, or does not share its key."""


class SandboxQuotaError(SandboxStartError):
    """A quota does not allow another sandbox."""


class EgressNotEnforcedError(SandboxStartError):
    """Sandboxes of network "none" would reach the outside all the same."""


class SandboxNotFoundError(UsageError):
    """There is no sandbox with this id."""


class SandboxExistsError(UsageError):
    """The id is taken by a sandbox of another spec."""


class SandboxFileError(UsageError):
    """A path in the sandbox is missing, of the wrong kind, or not permitted."""


class SandboxPortError(UsageError):
    """Nothing answers on a port of the sandbox."""


class UnknownExecError(UsageError):
    """The sandbox knows no command with this id."""


class ExecConflictError(UsageError):
    """An exec id was used again for a different command."""
