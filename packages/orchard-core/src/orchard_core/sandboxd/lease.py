"""How long the sandbox lives: a time limit, and a limit on idleness that every use pushes out."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .loop import Loop, Timer


class Lease:
    """Ends the sandbox by `on_expired(reason)`; monotonic time, so no clock that is set moves it.

    `busy()` says whether it is in use at this moment: a command runs, or a stream is open.
    """

    def __init__(
        self,
        loop: Loop,
        ttl_s: float,
        idle_s: float | None,
        busy: Callable[[], bool],
        on_expired: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._busy = busy
        self._on_expired = on_expired
        self._idle_s = idle_s
        self._used = time.monotonic()
        self._deadline = self._used + ttl_s
        self._timer: Timer | None = None
        self._look()

    def touch(self) -> None:
        """The sandbox is being used."""
        self._used = time.monotonic()

    def renew(self, ttl_s: float | None, idle_s: float | None) -> None:
        """Count the time limit anew from now, or set another limit on idleness (seconds, positive)."""
        self.touch()
        if ttl_s is not None:
            self._deadline = self._used + ttl_s
        if idle_s is not None:
            self._idle_s = idle_s
        self._look()

    def left(self) -> dict[str, Any]:
        """The seconds that are left; `idle_left_s` is None without a limit on idleness."""
        now = time.monotonic()
        idle = None if self._idle_s is None else self._used + self._idle_s - now
        return {"ttl_left_s": self._deadline - now, "idle_left_s": idle}

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now = time.monotonic()
        if now >= self._deadline:
            self._on_expired("it reached its time limit (ttl_s)")
            return
        wait = self._deadline - now
        if self._idle_s is not None:
            if self._busy():
                self._used = now
            idle_left = self._used + self._idle_s - now
            if idle_left <= 0:
                self._on_expired("it was idle for longer than its lease (idle_s)")
                return
            wait = min(wait, idle_left)
        self._timer = self._loop.after(wait, self._look)
