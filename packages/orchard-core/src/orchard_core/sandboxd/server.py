"""Hands each request of a client to what serves it; one `Server` a sandbox, over any number of connections."""

from __future__ import annotations

import math
import os
import struct
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
_REALTIME_COARSE = 5
# What a request that makes no sense can raise while it is read.
_UNREADABLE = (LookupError, OverflowError, TypeError, ValueError, struct.error)


class Server:
    """The sandbox's commands, files and tunnels."""

    def __init__(self, loop: Loop, config: dict[str, Any]) -> None:
        self.loop = loop
        self.connections: set[Connection] = set()
        # By the clock that stamps inodes, which runs some milliseconds late.
        self._began = time.clock_gettime(_REALTIME_COARSE)
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
        except _UNREADABLE as error:
            stream.error("usage", f"sandboxd can't read this request: {type(error).__name__}: {error}")

    def _start(self, stream: Stream, request: dict[str, Any], path: str) -> None:
        op = request["op"]
        if op == "exec":
            _check_seconds(request, "timeout")
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
            self._listeners.open(stream, _port(request, least=0))
        elif op == "connect":
            ports.connect(self.loop, stream, _port(request))
        elif op == "probe":
            _check_seconds(request, "timeout_s")
            ports.probe(self.loop, stream, request["host"], _port(request), request["timeout_s"])
        elif op in ("lease", "renew"):
            _check_seconds(request, "ttl_s")
            _check_seconds(request, "idle_s")
            self._lease.renew(request.get("ttl_s"), request.get("idle_s"))
            stream.result(self._lease.left())
        elif op == "stat":
            streams = sum(len(connection.streams) for connection in self.connections) - 1
            stream.result({**measure.collect(), "running": self._execs.running, "streams": streams})
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
        elif op == "digest":
            roots = request["roots"]
            self._job(stream, lambda: snapshot.digest(roots), path, upload=False)
        elif op == "apply":
            self._job(stream, snapshot.apply, path, upload=True)
        else:
            stream.error("usage", f"sandboxd does not know the operation {op!r}")

    def _job(self, stream: Stream, call: Callable[[], None], path: str, upload: bool) -> None:
        trees.TreeJob(self.loop, self._reaper, stream, call, path, upload=upload)


def _check_seconds(request: dict[str, Any], name: str) -> None:
    value = request.get(name)
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} is a number of seconds, not {value}")


def _port(request: dict[str, Any], least: int = 1) -> int:
    port = request["port"]
    if not isinstance(port, int) or not least <= port < 65536:
        raise ValueError(f"{port!r} is no port number")
    return port
