"""Hands each request of a client to what serves it; one `Server` a sandbox, over any number of connections."""

from __future__ import annotations

import os
import sys
import time

from . import files, measure, ports, snapshot, trees, wire
from .execs import ExecTable
from .lease import Lease
from .mux import Connection, Stream
from .reaper import Reaper
from .tunnel import Listeners

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket
    from collections.abc import Callable
    from typing import Any

    from .loop import Loop


# For the clients to take the farewell in; the first process of a container takes all others with it.
_FAREWELL_S = 0.5


class Server:
    """The sandbox's commands, files and tunnels."""

    def __init__(self, loop: Loop, config: dict[str, Any]) -> None:
        self.loop = loop
        self.connections: set[Connection] = set()
        self._began = time.time()
        self._ended: dict[str, Any] | None = None
        self._workdir: str = config["workdir"]
        self._reaper = Reaper(loop)
        self._execs = ExecTable(loop, self._reaper, config["env"], self._workdir)
        self._listeners = Listeners(loop)
        self._lease = Lease(loop, config["ttl_s"], config["idle_s"], self._busy, self._expire)

    def take(self, sock: Socket, on_gone: Callable[[], None]) -> Connection:
        """Serve a connection whose client is trusted; `on_gone` is called at its end."""

        def gone(connection: Connection) -> None:
            self.connections.discard(connection)
            self._stop_when_alone()
            on_gone()

        connection = Connection(self.loop, sock, self._on_open, gone)
        self.connections.add(connection)
        connection.start()
        hello = {"version": wire.VERSION, "python": list(sys.version_info[:3])}
        connection.send(wire.HELLO, 0, wire.pack(hello))
        if self._ended is not None:
            connection.send(wire.BYE, 0, wire.pack(self._ended))
        return connection

    def end(self, reason: str, expired: bool = False) -> None:
        """End the sandbox once the clients, who are told why, have closed their connections, or soon."""
        self._ended = {"reason": reason, "expired": expired}
        self.loop.after(_FAREWELL_S, self.loop.stop)
        for connection in list(self.connections):
            connection.send(wire.BYE, 0, wire.pack(self._ended))
        self._stop_when_alone()

    def _stop_when_alone(self) -> None:
        if self._ended is not None and not self.connections:
            self.loop.stop()

    def _busy(self) -> bool:
        return self._execs.running > 0 or any(connection.streams for connection in self.connections)

    def _expire(self, reason: str) -> None:
        self.end(reason, expired=True)

    def _on_open(self, stream: Stream, request: dict[str, Any]) -> None:
        path = os.path.join(self._workdir, request.get("path") or "")
        self._lease.touch()
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
        elif op == "attach":
            self._execs.attach(stream, request)
        elif op in ("status", "signal", "cancel", "resize"):
            self._execs.control(stream, request)
        elif op == "execs":
            self._execs.all(stream)
        elif op == "stdin":
            self._execs.feed(stream, request)
        elif op == "listen":
            self._listeners.open(stream, request["port"])
        elif op == "connect":
            ports.connect(self.loop, stream, request["port"])
        elif op == "probe":
            ports.probe(self.loop, stream, request)
        elif op in ("lease", "renew"):
            self._lease.renew(request.get("ttl_s"), request.get("idle_s"))
            stream.result(self._lease.left())
        elif op == "stat":
            stream.result({**measure.collect(), "running": self._execs.running})
        else:
            self._start_on_files(stream, request, path)

    def _start_on_files(self, stream: Stream, request: dict[str, Any], path: str) -> None:
        op = request["op"]
        if op == "read":
            files.ReadFile(stream, path, request.get("offset", 0))
        elif op == "write":
            files.WriteFile(stream, path, request["mode"])
        elif op == "list":
            files.list_files(stream, path)
        elif op == "upload":
            self._job(stream, lambda: trees.extract(path), path, upload=True)
        elif op == "download":
            self._job(stream, lambda: trees.archive(path), path, upload=False)
        elif op == "changes":
            roots, since = request["roots"], self._began if request["since_start"] else 0.0
            self._job(stream, lambda: snapshot.changes(roots, since), path, upload=False)
        elif op == "apply":
            self._job(stream, snapshot.apply, path, upload=True)
        else:
            stream.error("usage", f"sandboxd does not know the operation {op!r}")

    def _job(self, stream: Stream, call: Callable[[], None], path: str, upload: bool) -> None:
        trees.TreeJob(self.loop, self._reaper, stream, call, path, upload=upload)
