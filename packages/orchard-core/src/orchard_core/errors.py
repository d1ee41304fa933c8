"""The root of Orchard's typed errors.

Every error a user can meet derives from `OrchardError`; the command line prints its
message as one sentence and exits non-zero. `InfrastructureError` marks faults that are
never the agent's: a rollout that ends in one leaves both the loss and the baseline.
"""


class OrchardError(Exception):
    """Base of all errors that Orchard raises on purpose; `str(error)` says what to do."""


class InfrastructureError(OrchardError):
    """A sandbox, proxy, engine or store failed; the agent is not to blame."""


class UsageError(OrchardError):
    """The caller asked for something that cannot be done as asked."""


class MissingExtraError(UsageError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; run: pip install 'orchard-core[{extra}]'")
        self.package = package
        self.extra = extra
