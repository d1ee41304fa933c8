"""Reaches a listening sandboxd: connects, proves the key, and has the sandbox prove that it is the right one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orchard_core.env.connection import ClientStream, Connection
from orchard_core.env.errors import SandboxIdentityError, SandboxUnreachableError
from orchard_core.env.proving import Credentials, Prover

_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A pod's address; `host` is an IP address."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A socket file on this machine."""

    path: str

    def __str__(self) -> str:
        return self.path


Address = TcpAddress | UnixAddress


async def dial(
    address: Address,
    credentials: Credentials,
    on_connect: Callable[[ClientStream, dict[str, Any]], None],
    *,
    timeout_s: float = 5.0,
) -> Connection:
    """A connection whose both ends are proven.

    Raises SandboxUnreachableError when nothing answers (it may be tried again), and SandboxIdentityError
    when what answers is not this sandbox or does not accept the key.
    """
    try:
        async with asyncio.timeout(timeout_s):
            sock = await _connect(address)
            return await greet(sock, Connection(on_connect, Prover(credentials)))
    except TimeoutError as error:
        raise SandboxUnreachableError(f"{address} did not answer within {timeout_s:g} s") from error
    except OSError as error:
        raise SandboxUnreachableError(f"{address} can't be reached: {error.strerror or error}") from error
    except SandboxIdentityError as error:
        raise SandboxIdentityError(f"{address}: {error}") from error


async def greet(
    sock: socket.socket, connection: Connection, protocol: asyncio.Protocol | None = None
) -> Connection:
    """Run `connection` over a connected socket until sandboxd has let us in.

    `protocol` is what reads the socket where that is not the connection itself (it unwraps).

    Raises SandboxIdentityError, or SandboxUnreachableError when the other side closes before.
    """
    try:
        await asyncio.get_running_loop().create_connection(lambda: protocol or connection, sock=sock)
        hello = await connection.hello
    except BaseException:
        connection.shut("it was given up")
        sock.close()
        raise
    if hello is None:
        raise SandboxUnreachableError(f"the sandbox let nobody in: {connection.reason}")
    return connection


async def _connect(address: Address) -> socket.socket:
    sock = _socket_for(address)
    target = address.path if isinstance(address, UnixAddress) else (address.host, address.port)
    try:
        await asyncio.get_running_loop().sock_connect(sock, target)
    except BaseException:
        sock.close()
        raise
    return sock


def _socket_for(address: Address) -> socket.socket:
    if isinstance(address, UnixAddress):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        sock = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, option):  # macOS names them otherwise
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    sock.setblocking(False)
    return sock
