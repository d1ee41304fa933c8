"""What the proxy tells a harness when it does not serve a call; each dialect gives it its own shape."""

from __future__ import annotations

from typing import Literal

from orchard_core.errors import OrchardError

RefusalCode = Literal[
    "malformed_request",
    "wrong_secret",
    "unknown_session",
    "unknown_route",
    "body_too_large",
    "budget_exceeded",
    "session_sealed",
    "engine_failed",
    "internal_error",
]

STATUS: dict[RefusalCode, int] = {
    "malformed_request": 400,
    "wrong_secret": 401,
    "unknown_session": 404,
    "unknown_route": 404,
    "body_too_large": 413,
    # 403 rather than 429 or 410: clients retry those, and the session is over for good.
    "budget_exceeded": 403,
    "session_sealed": 403,
    "engine_failed": 502,
    "internal_error": 500,
}
"""The HTTP status of each refusal."""


class CallRefused(OrchardError):
    """A call that gets an error instead of a reply. `code` is stable and machine-readable."""

    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(message)
        self.code: RefusalCode = code

    @property
    def status(self) -> int:
        return STATUS[self.code]

    @property
    def retriable(self) -> bool:
        """Whether sending the same call again may succeed."""
        return self.code == "engine_failed"
