"""Hands each request of a client to what serves it; one `Server` a sandbox, over any number of connections."""

from __future__ import annotations

import os
import sys

from . import files, trees, wire
from .execs import ExecTable
from .mux import Connection, Stream
from .reaper import Reaper
from .tunnel import Listeners

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket
    from collections.abc import Callable
    from typing import Any

    from .loop import Loop


class Server:
    """The sandbox's commands, files and tunnels."""

    def __init__(self, loop: Loop, config: dict[str, Any]) -> None:
        self.loop = loop
        self.connections: set[Connection] = set()
        self._workdir: str = config["workdir"]
        self._reaper = Reaper(loop)
        self._execs = ExecTable(loop, self._reaper, config["env"], self._workdir)
        self._listeners = Listeners(loop)
        loop.after(config["ttl_s"], lambda: self.end("it reached its time limit (ttl_s)"))

    def take(self, sock: Socket, on_gone: Callable[[], None]) -> Connection:
        """Serve a connection whose client is trusted; `on_gone` is called at its end."""

        def gone(connection: Connection) -> None:
            self.connections.discard(connection)
            on_gone()

        connection = Connection(self.loop, sock, self._on_open, gone)
        self.connections.add(connection)
        connection.start()
        hello = {"version": wire.VERSION, "python": list(sys.version_info[:3])}
        connection.send(wire.HELLO, 0, wire.pack(hello))
        return connection

    def end(self, reason: str) -> None:
        """End the sandbox, and tell the clients why."""
        for connection in list(self.connections):
            connection.send(wire.BYE, 0, wire.pack({"reason": reason}))
            connection.drain()
        self.loop.stop()

    def _on_open(self, stream: Stream, request: dict[str, Any]) -> None:
        path = os.path.join(self._workdir, request.get("path") or "")
        try:
            self._start(stream, request, path)
        except OSError as error:
            stream.error(*files.describe(error, path))
        except (KeyError, TypeError, ValueError) as error:
            stream.error("usage", f"sandboxd can't read this request: {type(error).__name__}: {error}")

    def _start(self, stream: Stream, request: dict[str, Any], path: str) -> None:
        op = request["op"]
        if op == "exec":
            self._execs.open(stream, request)
        elif op == "read":
            files.ReadFile(stream, path)
        elif op == "write":
            files.WriteFile(stream, path, request["mode"])
        elif op == "list":
            files.list_files(stream, path)
        elif op == "upload":
            trees.TreeJob(self.loop, self._reaper, stream, lambda: trees.extract(path), path, upload=True)
        elif op == "download":
            trees.TreeJob(self.loop, self._reaper, stream, lambda: trees.archive(path), path, upload=False)
        elif op == "listen":
            self._listeners.open(stream, request["port"])
        else:
            stream.error("usage", f"sandboxd does not know the operation {op!r}")
