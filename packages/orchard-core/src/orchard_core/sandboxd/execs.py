"""Commands: each has an id that the client chose, and runs at most once for it."""

from __future__ import annotations

import fcntl
import os
import time

from . import process, wire
from .loop import READ, WRITE
from .mux import Handler, Stream
from .output import Capture, Pump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from .loop import Loop, Timer
    from .reaper import Reaper

_F_GETPIPE_SZ = 1032
_KEPT_OUTPUT = 64 << 20


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
            self.command.feed(data)
        else:
            self.stream.consumed(len(data))  # the first caller's stdin is the command's

    def on_end(self) -> None:
        if self.command.feeder is self:
            self.command.end_stdin()

    def on_reset(self) -> None:
        self.command.leave(self)

    def on_lost(self) -> None:
        self.command.lose(self)


class Command:
    """One command from its start to its kept result."""

    def __init__(self, table: ExecTable, request: Mapping[str, Any]) -> None:
        self.id: str = request["id"]
        self.identity = (request["argv"], request["env"], request["cwd"])
        self.keep: bool = request["keep"]
        # On behalf of a client that connects again when it has lost us, and then asks for the same id.
        self.linger: bool = request.get("linger", False)
        self.feeder: Watcher | None = None
        self.result: dict[str, Any] | None = None
        self.outputs = (b"", b"")
        self.supervisor = 0
        self._table = table
        self._loop = table.loop
        self._watchers: list[Watcher] = []
        self._captures = (Capture(request["max_output"]), Capture(request["max_output"]))
        self._pipes: list[int] = [-1, -1]
        self._report = -1
        self._report_data = b""
        self._stdin = -1
        self._stdin_queue: list[bytes] = []
        self._stdin_ended = False
        self._timer: Timer | None = None
        self._timed_out = False
        self._input_lost = False
        self._started = time.monotonic()
        self._command_pid = 0

    # -- start

    def start(
        self, argv: list[str], env: Mapping[str, str], cwd: str, timeout: float | None, stdin: bool
    ) -> None:
        """Raises OSError when the process can't be made."""
        ends = [os.pipe(), os.pipe()] + ([os.pipe()] if stdin else [])
        source = ends[2][0] if stdin else os.open("/dev/null", os.O_RDONLY)
        given = (source, ends[0][1], ends[1][1])
        try:
            self.supervisor, self._report = process.spawn_supervised(argv, env, cwd, given)
        except OSError:
            for fd in [ends[0][0], ends[1][0]] + ([ends[2][1]] if stdin else []):
                os.close(fd)
            raise
        finally:
            for fd in given:
                os.close(fd)
        self._table.reaper.expect(self.supervisor, lambda _status: None)
        self._pipes = [ends[0][0], ends[1][0]]
        if stdin:
            self._stdin = ends[2][1]
            os.set_blocking(self._stdin, False)
        for fd in [*self._pipes, self._report]:
            os.set_blocking(fd, False)
        self._loop.watch(self._report, READ, self._on_report)
        self.update_reading()
        if timeout is not None:
            self._timer = self._loop.after(timeout, self._on_timeout)

    def attach(self, stream: Stream, live: bool, seen: Sequence[int] = (0, 0)) -> Watcher:
        """Add a watcher. A live one gets what is kept of the output after its first `seen` bytes, then the rest."""
        watcher = Watcher(self, stream, live)
        stream.handler = watcher
        self._watchers.append(watcher)
        if live:
            for index, capture in enumerate(self._captures):
                watcher.pump.put(wire.CH_LIVE_STDOUT + index, capture.since(seen[index]))
        if self.result is not None:
            self._answer(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """A client gave up. A command that nobody can ask for again is killed; others run on."""
        if watcher not in self._watchers:
            return  # it was being answered
        self._watchers.remove(watcher)
        if watcher is self.feeder:
            self.end_stdin()
        if not self._watchers and not self.keep and self.result is None:
            self._on_timeout()
        else:
            self.update_reading()

    def lose(self, watcher: Watcher) -> None:
        """A client's connection broke. If it may come back, its command runs on."""
        if not self.linger and not self.keep:
            self.leave(watcher)
        elif watcher in self._watchers:
            self._watchers.remove(watcher)
            if watcher is self.feeder and self._stdin >= 0 and not self._stdin_ended:
                # Half an input must not pass for a whole one.
                self._input_lost = True
                self._on_timeout()
            self.update_reading()

    # -- stdin

    def feed(self, data: bytes) -> None:
        self._stdin_queue.append(data)
        self._write_stdin()

    def end_stdin(self) -> None:
        self._stdin_ended = True
        self._write_stdin()

    def _write_stdin(self, _events: int = 0) -> None:
        while self._stdin_queue:
            data = self._stdin_queue[0]
            try:
                written = os.write(self._stdin, data) if self._stdin >= 0 else len(data)
            except BlockingIOError:
                self._loop.watch(self._stdin, WRITE, self._write_stdin)
                return
            except BrokenPipeError:
                self._close_stdin()
                written = len(data)
            if self.feeder is not None:
                self.feeder.stream.consumed(written)
            if written < len(data):
                self._stdin_queue[0] = data[written:]
            else:
                self._stdin_queue.pop(0)
        if self._stdin >= 0:
            self._loop.unwatch(self._stdin)
            if self._stdin_ended:
                self._close_stdin()

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            self._loop.unwatch(self._stdin)
            os.close(self._stdin)
            self._stdin = -1

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
        if not data:
            self._loop.unwatch(fd)
            os.close(fd)
            self._pipes[index] = -1
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
            else:
                self.ended(value)

    def _close_report(self) -> None:
        self._loop.unwatch(self._report)
        os.close(self._report)
        self._report = -1
        if self.result is None and not self._timed_out:
            # The supervisor was killed from inside; its command is now sandboxd's own child.
            self._table.reaper.expect(self._command_pid, self.ended)

    def ended(self, status: int) -> None:
        """The command itself ended; what it left running in the background may live on."""
        if not self._timed_out and self.result is None:
            self._finish(process.exit_code(status))

    def _on_timeout(self) -> None:
        if self.result is None:
            self._timed_out = True
            self._kill(400)

    def _kill(self, tries: int) -> None:
        if process.kill_tree(self.supervisor, self._table.reaper.own) and tries:
            self._loop.after(0.005, lambda: self._kill(tries - 1))
        else:
            self._finish(None)

    def _finish(self, code: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for index, fd in enumerate(self._pipes):
            # All that the command wrote is in the pipe by now; a background child may go on writing for ever.
            left = fcntl.fcntl(fd, _F_GETPIPE_SZ) if fd >= 0 else 0
            while left > 0:
                count = self._read(index, left)
                left = left - count if count else 0
        self._stdin_ended = True
        self._close_stdin()
        self._write_stdin()
        (out, out_dropped), (err, err_dropped) = (capture.finish() for capture in self._captures)
        self.outputs = (out, err)
        self.result = {
            "exit_code": code,
            "timed_out": self._timed_out,
            "stdout_dropped": out_dropped,
            "stderr_dropped": err_dropped,
            "duration_s": time.monotonic() - self._started,
        }
        for watcher in list(self._watchers):
            self._answer(watcher)
        self.update_reading()  # from now on only to discard
        self._table.finished(self)

    def _answer(self, watcher: Watcher) -> None:
        assert self.result is not None
        self._watchers.remove(watcher)
        if self._input_lost:
            watcher.stream.error(
                "sandbox", "the connection broke before all of the command's input had come; it was killed"
            )
            return
        watcher.live = False
        watcher.pump.put(wire.CH_STDOUT, self.outputs[0])
        watcher.pump.put(wire.CH_STDERR, self.outputs[1])
        watcher.pump.finish(self.result)

    def forget_output(self) -> None:
        """Free the kept output; the result then says that all of it is missing."""
        assert self.result is not None
        self.result["stdout_dropped"] += len(self.outputs[0])
        self.result["stderr_dropped"] += len(self.outputs[1])
        self.outputs = (b"", b"")


class ExecTable:
    """All commands by id. Results of client-chosen ids are kept; the oldest output goes first past 64 MiB."""

    def __init__(self, loop: Loop, reaper: Reaper, env: Mapping[str, str], workdir: str) -> None:
        self.loop = loop
        self.reaper = reaper
        self._env = env
        self._workdir = workdir
        self._commands: dict[str, Command] = {}
        self._finished: list[Command] = []

    def open(self, stream: Stream, request: dict[str, Any]) -> None:
        """Serve one exec request: start it, attach to it, or refuse it."""
        for done in request.get("done", ()):
            self._forget(done)
        command = self._commands.get(request["id"])
        if command is not None:
            if command.identity != (request["argv"], request["env"], request["cwd"]):
                stream.error("conflict", f"exec id {command.id!r} was used for a different command")
                return
            command.attach(stream, request["live"], request.get("seen", (0, 0)))
            return
        cwd = os.path.join(self._workdir, request["cwd"] or "")
        if not os.path.isdir(cwd):
            stream.error("file", f"working directory {cwd} does not exist in the sandbox")
            return
        command = Command(self, request)
        env = dict(self._env)
        env.update(request["env"])
        try:
            command.start(request["argv"], env, cwd, request["timeout"], request["stdin"])
        except OSError as error:
            stream.error("sandbox", f"the sandbox could not start a process: {error.strerror}")
            return
        self._commands[command.id] = command
        command.feeder = command.attach(stream, request["live"])

    def _forget(self, name: str) -> None:
        """The client has this lingering command's result."""
        command = self._commands.get(name)
        if command is not None and command.linger and command.result is not None:
            del self._commands[name]
            if command in self._finished:
                self._finished.remove(command)

    def finished(self, command: Command) -> None:
        if not (command.keep or command.linger):
            del self._commands[command.id]
            return
        self._finished.append(command)
        kept = sum(len(out) + len(err) for out, err in (done.outputs for done in self._finished))
        while kept > _KEPT_OUTPUT and len(self._finished) > 1:
            oldest = self._finished.pop(0)
            kept -= sum(len(data) for data in oldest.outputs)
            oldest.forget_output()
