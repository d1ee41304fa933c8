"""The daemon's entry. Told by ORCHARD_LISTEN to listen, it does; else it serves the one socket on stdin."""

from __future__ import annotations

import _socket as socket
import os
import resource
import sys

from . import process, wire
from .loop import READ, Loop
from .server import Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main() -> None:
    """Serve until the sandbox's end; never returns."""
    if os.environ.get("ORCHARD_LISTEN"):
        from . import listening  # what it imports would only slow the other way's start

        listening.main()
    else:
        serve_inherited()
    os._exit(0)


def serve_inherited() -> None:
    """Serve the socket on stdin until its client is gone. The first frame must be CONFIG.

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
    loop = Loop()
    if client >= 0:
        loop.watch(client, READ, lambda _events: loop.stop())
    Server(loop, config).take(sock, loop.stop)
    loop.run()


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
