"""One command: its processes, its output, those who watch it, and how it ended."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import time

from . import process, wire
from .loop import READ
from .mux import Handler, Stream
from .output import Capture, Pump
from .stdin import StdinQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from .loop import Loop, Timer
    from .reaper import Reaper

# The most that a client may have kept of each of a command's outputs.
MAX_OUTPUT = 64 << 20
_F_GETPIPE_SZ = 1032
_WINDOW = struct.Struct("HHHH")


class Watcher(Handler):
    """A client's stream that waits for a command's result, and perhaps follows its output live."""

    def __init__(self, command: Command, stream: Stream, live: bool) -> None:
        self.command = command
        self.stream = stream
        self.live = live
        self.pump = Pump(stream, command.update_reading)

    def on_credit(self) -> None:
        self.pump.push()

    def on_data(self, data: bytes) -> None:
        if self.command.feeder is self:
            self.command.stdin.put(data, self.stream)
        else:
            self.stream.consumed(len(data))  # the first caller's stdin is the command's

    def on_end(self) -> None:
        if self.command.feeder is self:
            self.command.stdin.end()

    def on_reset(self) -> None:
        self.command.leave(self)

    def on_lost(self) -> None:
        self.command.lose(self)


class Command:
    """One command from its start to its kept result.

    `keep` and `linger` say who may ask for it again: the holder of an id of its own choice, or a client
    that connects again when it has lost us. `on_finished(self)` is called once; `result` is then still
    None if no process could be made.
    """

    def __init__(
        self, loop: Loop, reaper: Reaper, request: Mapping[str, Any], on_finished: Callable[[Command], None]
    ) -> None:
        self.id: str = request["id"]
        self.argv: list[str] = request["argv"]
        self.identity = (request["argv"], request["env"], request["cwd"])
        self.detached: bool = request.get("detach", False)
        self.keep: bool = request["keep"] or self.detached
        self.linger: bool = request.get("linger", False)
        self.feeder: Watcher | None = None
        self.result: dict[str, Any] | None = None
        self.supervisor = 0
        self.started_at = time.time()
        self.ended_at: float | None = None
        self.stdin = StdinQueue(loop, -1)
        self._loop = loop
        self._reaper = reaper
        self._on_finished = on_finished
        self._watchers: list[Watcher] = []
        self._starters: list[Stream] = []
        limit = min(max(0, request["max_output"]), MAX_OUTPUT)
        self._captures = (Capture(limit), Capture(limit))
        self._pipes: list[int] = [-1, -1]
        self._terminal = -1
        self._report = -1
        self._report_data = b""
        self._timer: Timer | None = None
        self._killed_for: str | None = None
        self._input_lost = False
        self._failed = False
        self._started = time.monotonic()
        self._command_pid = 0

    # -- start

    def start(
        self, plan: process.Plan, timeout: float | None, stdin: bool, window: Sequence[int] | None
    ) -> None:
        """Run `plan`; with a `window` (rows, columns) on a terminal of its own. Raises OSError when no
        process can be made."""
        if window is None:
            given, self._pipes, feed = _pipes(stdin)
        else:
            given, self._terminal = _terminal(window)
            self._pipes = [self._terminal, -1]
            feed = os.dup(self._terminal)
        try:
            self.supervisor, self._report = process.spawn_supervised(plan, given, window is not None)
        except OSError:
            for fd in {fd for fd in (*self._pipes, feed) if fd >= 0}:
                os.close(fd)
            raise
        finally:
            for fd in set(given):
                os.close(fd)
        self._reaper.began(self.supervisor, lambda _status: None)
        for fd in [*self._pipes, self._report, feed]:
            if fd >= 0:
                os.set_blocking(fd, False)
        self.stdin = StdinQueue(self._loop, feed)
        self._loop.watch(self._report, READ, self._on_report)
        self.update_reading()
        if timeout is not None:
            self._timer = self._loop.after(timeout, lambda: self.end_early("timed_out"))

    def attach(self, stream: Stream, live: bool, seen: Sequence[int] = (0, 0)) -> Watcher:
        """Add a watcher. A live one gets what is kept of the output after its first `seen` bytes, then the rest."""
        watcher = Watcher(self, stream, live)
        stream.handler = watcher
        self._watchers.append(watcher)
        if live:
            for index, capture in enumerate(self._captures):
                before, skipped, after = capture.since(seen[index])
                channel = wire.CH_LIVE_STDOUT + index
                watcher.pump.put(channel, before)
                if skipped:
                    watcher.pump.put(wire.CH_SKIPPED, wire.SKIPPED.pack(channel, skipped))
                watcher.pump.put(channel, after)
        if self.result is not None:
            self._answer(watcher)
        return watcher

    def tell_started(self, stream: Stream) -> None:
        """Answer with the command's state once it is known that a process could be made."""
        if self._command_pid or self.result is not None:
            stream.result(self.state())
        else:
            self._starters.append(stream)

    def leave(self, watcher: Watcher) -> None:
        """A client gave up. A command that nobody can ask for again is killed; others run on."""
        if watcher not in self._watchers:
            return  # it was being answered
        self._watchers.remove(watcher)
        if watcher is self.feeder:
            self.stdin.end()
        if not self._watchers and not self.keep and self.result is None:
            self.end_early("cancelled")
        else:
            self.update_reading()

    def lose(self, watcher: Watcher) -> None:
        """A client's connection broke. If it may come back, its command runs on."""
        if not self.linger and not self.keep:
            self.leave(watcher)
        elif watcher in self._watchers:
            self._watchers.remove(watcher)
            if watcher is self.feeder and self.stdin.is_open and not self.detached and self._terminal < 0:
                # Half an input must not pass for a whole one.
                self._input_lost = True
                self.end_early("cancelled")
            self.update_reading()

    def state(self) -> dict[str, Any]:
        """What there is to say about it at present; times in Unix seconds, output in bytes so far."""
        ended = self.result or {}
        state = "running" if self.result is None else self._killed_for or "exited"
        return {
            "id": self.id,
            "argv": self.argv,
            "state": state,
            "exit_code": ended.get("exit_code"),
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "stdout_bytes": self._captures[0].total,
            "stderr_bytes": self._captures[1].total,
        }

    @property
    def kept_bytes(self) -> int:
        """How much output is kept."""
        return self._captures[0].kept + self._captures[1].kept

    def signal(self, number: int) -> int:
        """Send a signal to all of the command's processes; returns how many there were."""
        return (
            0 if self.result is not None else process.signal_tree(self.supervisor, self._reaper.own, number)
        )

    def resize(self, rows: int, columns: int) -> bool:
        """Say the terminal's new size; False where there is none."""
        if self._terminal < 0:
            return False
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, _WINDOW.pack(rows, columns, 0, 0))
        return True

    # -- output

    def update_reading(self) -> None:
        """Read the command's output unless a live watcher lags; a full pipe then holds the command back."""
        lagging = self.result is None and any(
            watcher.live and watcher.pump.waiting for watcher in self._watchers
        )
        for index, fd in enumerate(self._pipes):
            if fd < 0:
                continue
            if lagging:
                self._loop.unwatch(fd)
            else:
                self._loop.watch(fd, READ, self._reader(index))

    def _reader(self, index: int) -> Callable[[int], None]:
        def on_ready(_events: int) -> None:
            if self._read(index, wire.CHUNK):
                self.update_reading()

        return on_ready

    def _read(self, index: int, size: int) -> int:
        """Take up to `size` bytes from a pipe; returns how many came."""
        fd = self._pipes[index]
        if fd < 0:
            return 0
        try:
            data = os.read(fd, size)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""  # how a terminal says that its last user has gone
        if not data:
            self._loop.unwatch(fd)
            os.close(fd)
            self._pipes[index] = -1
            if fd == self._terminal:
                self._terminal = -1
        elif self.result is None:
            self._captures[index].write(data)
            for watcher in self._watchers:
                if watcher.live:
                    watcher.pump.put(wire.CH_LIVE_STDOUT + index, data)
        return len(data)

    # -- end

    def _on_report(self, _events: int) -> None:
        try:
            data = os.read(self._report, 4096)
        except BlockingIOError:
            return
        if not data:
            self._close_report()
            return
        self._report_data += data
        while len(self._report_data) >= process.REPORT.size:
            kind, value = process.REPORT.unpack_from(self._report_data)
            self._report_data = self._report_data[process.REPORT.size :]
            if kind == b"p":
                self._command_pid = value
                for stream in self._starters:
                    stream.result(self.state())
                self._starters.clear()
            elif kind == b"f":
                self._fail(os.strerror(value))
            else:
                self.ended(value)

    def _close_report(self) -> None:
        self._loop.unwatch(self._report)
        os.close(self._report)
        self._report = -1
        if self.result is not None or self._killed_for is not None or self._failed:
            return
        if self._command_pid:
            # The supervisor was killed from inside; its command is now sandboxd's own child.
            self._reaper.expect(self._command_pid, self.ended)
        else:
            self._fail("its supervisor was killed")

    def _fail(self, reason: str) -> None:
        """No process could be made: whoever waits is told so, and the id may be used again."""
        self._failed = True
        self._release()
        for fd in {fd for fd in self._pipes if fd >= 0}:
            self._loop.unwatch(fd)
            os.close(fd)
        self._pipes, self._terminal = [-1, -1], -1
        for stream in [*self._starters, *(watcher.stream for watcher in self._watchers)]:
            stream.error("sandbox", f"the sandbox could not start a process: {reason}")
        self._starters.clear()
        self._watchers.clear()
        self._on_finished(self)

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.stdin.discard()

    def ended(self, status: int) -> None:
        """The command itself ended; what it left running in the background may live on."""
        if self._killed_for is None and self.result is None:
            self._finish(process.exit_code(status))

    def end_early(self, why: str) -> None:
        """Kill all of it; `why` ("timed_out", "cancelled") goes into the result."""
        if self.result is None and self._killed_for is None:
            self._killed_for = why
            self._kill(400)

    def _kill(self, tries: int) -> None:
        if process.kill_tree(self.supervisor, self._reaper.own) and tries:
            self._loop.after(0.005, lambda: self._kill(tries - 1))
        else:
            self._finish(None)

    def _finish(self, code: int | None) -> None:
        for index, fd in enumerate(self._pipes):
            # All that the command wrote is in the pipe by now; a background child may go on writing for ever.
            left = 0 if fd < 0 else 1 << 16 if fd == self._terminal else fcntl.fcntl(fd, _F_GETPIPE_SZ)
            while left > 0:
                count = self._read(index, left)
                left = left - count if count else 0
        self._release()
        (_, out_dropped), (_, err_dropped) = (capture.finish() for capture in self._captures)
        self.ended_at = time.time()
        self.result = {
            "exit_code": code,
            "timed_out": self._killed_for == "timed_out",
            "cancelled": self._killed_for == "cancelled",
            "stdout_dropped": out_dropped,
            "stderr_dropped": err_dropped,
            "duration_s": time.monotonic() - self._started,
        }
        for stream in self._starters:
            stream.result(self.state())
        self._starters.clear()
        for watcher in list(self._watchers):
            self._answer(watcher)
        self.update_reading()  # from now on only to discard
        self._on_finished(self)

    def _answer(self, watcher: Watcher) -> None:
        assert self.result is not None
        self._watchers.remove(watcher)
        if self._input_lost:
            watcher.stream.error(
                "sandbox", "the connection broke before all of the command's input had come; it was killed"
            )
            return
        watcher.live = False
        for channel, capture in ((wire.CH_STDOUT, self._captures[0]), (wire.CH_STDERR, self._captures[1])):
            watcher.pump.put(channel, capture.finish()[0])
        watcher.pump.finish(self.result)

    def forget_output(self) -> None:
        """Free the kept output; the result then says that all of it is missing."""
        assert self.result is not None
        for name, capture in (("stdout_dropped", self._captures[0]), ("stderr_dropped", self._captures[1])):
            self.result[name] += capture.kept
            capture.forget()


def _pipes(stdin: bool) -> tuple[tuple[int, int, int], list[int], int]:
    """The command's ends, our reading ends, and our writing end (-1 without `stdin`)."""
    out, err = os.pipe(), os.pipe()
    if stdin:
        source, feed = os.pipe()
    else:
        source, feed = os.open("/dev/null", os.O_RDONLY), -1
    return (source, out[1], err[1]), [out[0], err[0]], feed


def _terminal(window: Sequence[int]) -> tuple[tuple[int, int, int], int]:
    size = _WINDOW.pack(window[0], window[1], 0, 0)
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    return (theirs, theirs, theirs), ours
