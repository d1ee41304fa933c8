"""The daemon's entry: set up the process, then serve one connection until it closes."""

from __future__ import annotations

import _socket as socket
import os
import resource
import sys

from . import files, process, trees, tunnel, wire
from .execs import ExecTable
from .loop import READ, Loop
from .mux import Connection, Gone, Stream
from .reaper import Reaper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Server:
    """Hands each request of the client to what serves it."""

    def __init__(self, sock: socket.socket, config: dict[str, Any], client: int) -> None:
        self._loop = Loop()
        self._workdir: str = config["workdir"]
        self._reaper = Reaper(self._loop)
        self._execs = ExecTable(self._loop, self._reaper, config["env"], self._workdir)
        self._connection = Connection(self._loop, sock, self._on_open)
        self._loop.after(config["ttl_s"], self._on_ttl)
        if client >= 0:
            self._loop.watch(client, READ, lambda _events: self._loop.stop())

    def serve(self) -> None:
        """Serve until the client is gone or the time is up."""
        hello = {"version": wire.VERSION, "python": list(sys.version_info[:3])}
        try:
            self._connection.start()
            self._connection.send(wire.HELLO, 0, wire.pack(hello))
            self._loop.run()
        except Gone:
            return

    def _on_ttl(self) -> None:
        self._connection.send(wire.BYE, 0, wire.pack({"reason": "ttl"}))
        self._connection.drain()
        self._loop.stop()

    def _on_open(self, stream: Stream, request: dict[str, Any]) -> None:
        path = os.path.join(self._workdir, request.get("path") or "")
        try:
            self._start(stream, request, path)
        except OSError as error:
            stream.error(*files.describe(error, path))

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
            trees.TreeJob(self._loop, self._reaper, stream, lambda: trees.extract(path), path, upload=True)
        elif op == "download":
            trees.TreeJob(self._loop, self._reaper, stream, lambda: trees.archive(path), path, upload=False)
        elif op == "listen":
            self._listen(stream, request["port"])
        else:
            stream.error("usage", f"sandboxd does not know the operation {op!r}")

    def _listen(self, stream: Stream, port: int) -> None:
        try:
            bound = tunnel.listen(self._loop, self._connection, port)
        except OSError as error:
            stream.error("usage", tunnel.loopback_port_error(error, port))
            return
        stream.result({"port": bound})


def main() -> None:
    """Serve the socket on stdin. The first frame must be CONFIG.

    The argument, if any, is an inherited pidfd of the client's process. The daemon ends with that
    process even if another one, such as a forked worker, still holds the client's end of the socket.
    """
    client = int(sys.argv[1]) if len(sys.argv) > 1 else -1
    process.close_all_but(client)
    if client >= 0:
        os.set_inheritable(client, False)
    sock = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    config = read_config(sock)
    process.load_prctl()
    limit(config)
    become(config)
    process.guard_process()
    process.die_with_parent()
    os.umask(0o022)
    os.chdir("/")
    sock.setblocking(False)
    Server(sock, config, client).serve()
    os._exit(0)


def read_config(sock: socket.socket) -> dict[str, Any]:
    """The CONFIG frame, blocking; nothing else is sent before HELLO."""
    header = _receive(sock, wire.HEADER.size)
    kind, _stream, length = wire.HEADER.unpack(header)
    if kind != wire.CONFIG or length > wire.MAX_PAYLOAD:
        raise SystemExit("sandboxd: the first frame is not CONFIG")
    config: dict[str, Any] = wire.unpack(_receive(sock, length))
    return config


def _receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise SystemExit(0)  # the client went away before it said anything
        data += piece
    return data


def limit(config: dict[str, Any]) -> None:
    """Set hard resource limits, which all commands inherit."""
    for which, name in ((resource.RLIMIT_NPROC, "pids"), (resource.RLIMIT_AS, "memory_bytes")):
        value = config[name]
        if value is not None:
            hard = resource.getrlimit(which)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(which, (value, value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def become(config: dict[str, Any]) -> None:
    """Where the sandbox was begun as root: hand the writable folders to the workload's user and become it."""
    user = config["user"]
    if user is None:
        return
    for path in config["own"]:
        os.chown(path, user, user)
    # No user namespaces inside: they open kernel interfaces that an agent has no use for.
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
