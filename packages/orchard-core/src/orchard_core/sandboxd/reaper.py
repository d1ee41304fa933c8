"""Reaps every child, own or adopted, so that no zombie stays."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found, unused-ignore]
import os

from .loop import READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Loop

_REMEMBERED = 1024


class Reaper:
    """Waits for children on SIGCHLD and tells those who asked how they ended."""

    def __init__(self, loop: Loop) -> None:
        self.own: dict[int, Callable[[int], None]] = {}
        self._strangers: dict[int, int] = {}
        self._wake_read, wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _stack: None)
        loop.watch(self._wake_read, READ, self._on_child)

    def began(self, pid: int, call: Callable[[int], None]) -> None:
        """Have `call(status)` called when `pid`, which has just been forked, has ended."""
        self._strangers.pop(pid, None)  # an earlier process that had the same number
        self.own[pid] = call

    def expect(self, pid: int, call: Callable[[int], None]) -> None:
        """Have `call(status)` called when `pid`, which was adopted, has ended, or now if it has already."""
        if pid in self._strangers:
            call(self._strangers.pop(pid))
        else:
            self.own[pid] = call

    def _on_child(self, _events: int) -> None:
        try:
            while os.read(self._wake_read, 4096):
                pass
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            call = self.own.pop(pid, None)
            if call is not None:
                call(status)
                continue
            self._strangers[pid] = status
            if len(self._strangers) > _REMEMBERED:
                del self._strangers[next(iter(self._strangers))]
