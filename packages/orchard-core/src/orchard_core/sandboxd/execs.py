"""All commands by id: each id was chosen by a client, and its command runs at most once."""

from __future__ import annotations

import os

from . import wire
from .command import Command
from .mux import Stream
from .output import send_all
from .process import Plan
from .stdin import StdinFeed
from .users import UserError, find_user

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .loop import Loop
    from .reaper import Reaper

_KEPT_OUTPUT = 64 << 20
_KEPT_RESULTS = 4096


class ExecTable:
    """Results of client-chosen ids are kept; past 64 MiB the oldest's output goes, past 4096 the oldest itself.

    An id is remembered for good: its command never runs again.
    """

    def __init__(self, loop: Loop, reaper: Reaper, env: Mapping[str, str], workdir: str) -> None:
        self._loop = loop
        self._reaper = reaper
        self._env = env
        self._workdir = workdir
        self._commands: dict[str, Command] = {}
        self._finished: dict[str, Command] = {}
        self._kept_bytes = 0
        self._past: set[str] = set()

    @property
    def running(self) -> int:
        return sum(command.result is None for command in self._commands.values())

    def open(self, stream: Stream, request: dict[str, Any]) -> None:
        """Serve one exec request: start it, attach to it, or refuse it."""
        for done in request.get("done", ()):
            self._forget(done)
        if request["id"] in self._past:
            self._find(stream, request)
            return
        command = self._commands.get(request["id"])
        if command is not None and command.identity != (request["argv"], request["env"], request["cwd"]):
            stream.error("conflict", f"exec id {command.id!r} was used for a different command")
            return
        if command is None:
            command = self._start(stream, request)
            if command is None:
                return
            if not request.get("detach"):
                command.feeder = command.attach(stream, request["live"])
        elif not request.get("detach"):
            command.attach(stream, request["live"], request.get("seen", (0, 0)))
        if request.get("detach"):
            command.tell_started(stream)

    def attach(self, stream: Stream, request: dict[str, Any]) -> None:
        """Wait for a known command's result."""
        command = self._find(stream, request)
        if command is not None:
            command.attach(stream, request["live"], request.get("seen", (0, 0)))

    def control(self, stream: Stream, request: dict[str, Any]) -> None:
        """Serve status, signal, cancel and resize."""
        command = self._find(stream, request)
        if command is None:
            return
        op = request["op"]
        if op == "signal":
            command.signal(request["number"])
        elif op == "cancel":
            command.end_early("cancelled")
        elif op == "resize" and not command.resize(request["rows"], request["columns"]):
            stream.error("usage", f"exec {command.id!r} has no terminal")
            return
        stream.result(command.state())

    def feed(self, stream: Stream, request: dict[str, Any]) -> None:
        """Take input for a command that runs."""
        command = self._find(stream, request)
        if command is None:
            return
        if command.stdin.is_open:
            StdinFeed(command.stdin, stream, request["last"])
        else:
            stream.error("usage", f"exec {command.id!r} takes no input (any more)")

    def all(self, stream: Stream) -> None:
        """List every command that is known."""
        send_all(stream, wire.pack([command.state() for command in self._commands.values()]))

    def _find(self, stream: Stream, request: dict[str, Any]) -> Command | None:
        command = self._commands.get(request["id"])
        if command is None:
            past = request["id"] in self._past
            what = "keeps the result of exec {!r} no longer" if past else "knows no exec {!r}"
            stream.error("unknown_exec", "the sandbox " + what.format(request["id"]))
        return command

    def _start(self, stream: Stream, request: dict[str, Any]) -> Command | None:
        cwd = os.path.join(self._workdir, request["cwd"] or "")
        if not os.path.isdir(cwd):
            stream.error("file", f"working directory {cwd} does not exist in the sandbox")
            return None
        try:
            user = find_user(request.get("user"))
        except UserError as error:
            stream.error("usage", str(error))
            return None
        command = Command(self._loop, self._reaper, request, self._on_finished)
        plan = Plan(request["argv"], {**self._env, **(user.env if user else {}), **request["env"]}, cwd, user)
        try:
            command.start(plan, request["timeout"], request["stdin"], request.get("window"))
        except OSError as error:
            stream.error("sandbox", f"the sandbox could not start a process: {error.strerror}")
            return None
        self._commands[command.id] = command
        return command

    def _forget(self, name: str) -> None:
        """The client has this lingering command's result."""
        command = self._commands.get(name)
        if command is not None and command.linger and command.result is not None:
            self._drop(command)

    def _drop(self, command: Command) -> None:
        self._commands.pop(command.id, None)
        if self._finished.pop(command.id, None) is not None:
            self._kept_bytes -= command.kept_bytes

    def _on_finished(self, command: Command) -> None:
        if command.result is None or not (command.keep or command.linger):
            self._drop(command)
            return
        self._finished[command.id] = command
        self._kept_bytes += command.kept_bytes
        if self._kept_bytes > _KEPT_OUTPUT:
            self._forget_outputs(command)
        if len(self._finished) > _KEPT_RESULTS:
            oldest = next(iter(self._finished.values()))
            self._past.add(oldest.id)
            self._drop(oldest)

    def _forget_outputs(self, newest: Command) -> None:
        for command in self._finished.values():
            if self._kept_bytes <= _KEPT_OUTPUT or command is newest:
                return
            self._kept_bytes -= command.kept_bytes
            command.forget_output()
