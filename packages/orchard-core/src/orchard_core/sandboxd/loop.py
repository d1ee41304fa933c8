"""A minimal event loop: epoll and timers. `asyncio` alone would take longer to import than a sandbox to start."""

from __future__ import annotations

import errno
import heapq
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
# The kernel takes no longer wait; a timer that is further away is looked at again.
_LONGEST_WAIT_S = 3600.0


class Timer:
    """A scheduled call; `cancel()` makes it not happen."""

    __slots__ = ("call", "cancelled", "when")

    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self.when = when
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def __lt__(self, other: Timer) -> bool:
        return self.when < other.when


class Loop:
    """Calls back when descriptors are ready and when timers are due. Single-threaded."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[int, Callable[[int], None]]] = {}
        self._timers: list[Timer] = []
        self._fresh: set[int] = set()
        self._running = False

    def watch(self, fd: int, events: int, call: Callable[[int], None]) -> None:
        """Call `call(events)` while `fd` is ready for `events`; replaces an earlier watch of `fd`."""
        if fd in self._watched:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
            self._fresh.add(fd)
        self._watched[fd] = (events, call)

    def unwatch(self, fd: int) -> None:
        """Forget `fd`; to be called before it is closed."""
        if self._watched.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def after(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(time.monotonic() + seconds, call)
        heapq.heappush(self._timers, timer)
        return timer

    def run(self) -> None:
        """Serve until `stop()`."""
        self._running = True
        while self._running:
            ready = self._poll()
            self._fresh.clear()
            for fd, events in ready:
                watched = self._watched.get(fd)
                # What was seen at a number that has since been closed and used again is not news of the new file.
                if watched is not None and fd not in self._fresh:
                    watched[1](events)
            self._run_due()

    def stop(self) -> None:
        self._running = False

    def _poll(self) -> list[tuple[int, int]]:
        timers = self._timers
        while timers and timers[0].cancelled:
            heapq.heappop(timers)
        timeout = _LONGEST_WAIT_S
        if timers:
            timeout = min(max(0.0, timers[0].when - time.monotonic()), _LONGEST_WAIT_S)
        try:
            return self._epoll.poll(timeout)
        except OSError as error:
            if error.errno == errno.EINTR:
                return []
            raise

    def _run_due(self) -> None:
        timers = self._timers
        now = time.monotonic()
        while timers and timers[0].when <= now:
            timer = heapq.heappop(timers)
            if not timer.cancelled:
                timer.call()
