"""Reaches a listening sandboxd: connects, proves the key, and has the sandbox prove that it is the right one."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from orchard_core.env.connection import ClientStream, Connection
from orchard_core.env.errors import SandboxIdentityError, SandboxUnreachableError
from orchard_core.sandboxd import auth, wire

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


@dataclass(frozen=True, slots=True)
class Credentials:
    """The sandbox's key (32 bytes) and the identity that it must prove (a pod's uid, or the sandbox's id)."""

    key: bytes = field(repr=False)
    identity: str


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
    sock = _socket_for(address)
    try:
        async with asyncio.timeout(timeout_s):
            await _connect(sock, address)
            await _prove(sock, credentials, address)
            _transport, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(on_connect), sock=sock
            )
            hello = await connection.hello
    except TimeoutError as error:
        sock.close()
        raise SandboxUnreachableError(f"{address} did not answer within {timeout_s:g} s") from error
    except OSError as error:
        sock.close()
        raise SandboxUnreachableError(f"{address} can't be reached: {error.strerror or error}") from error
    except BaseException:
        sock.close()
        raise
    if hello is None:
        raise SandboxIdentityError(f"the sandbox at {address} does not accept our key")
    return connection


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


async def _connect(sock: socket.socket, address: Address) -> None:
    target = address.path if isinstance(address, UnixAddress) else (address.host, address.port)
    await asyncio.get_running_loop().sock_connect(sock, target)


async def _prove(sock: socket.socket, credentials: Credentials, address: Address) -> None:
    loop = asyncio.get_running_loop()
    nonce = os.urandom(auth.NONCE_BYTES)
    await loop.sock_sendall(sock, _auth({"version": wire.VERSION, "nonce": nonce}))
    answer = await _read_auth(sock, address)
    if answer.get("version") != wire.VERSION:
        raise SandboxIdentityError(f"sandboxd at {address} speaks another protocol version")
    theirs = auth.as_nonce(answer.get("nonce"))
    if answer.get("identity") != credentials.identity or theirs is None:
        raise SandboxIdentityError(f"another sandbox answers at {address}")
    key, identity = credentials.key, credentials.identity
    if not auth.same(answer.get("proof"), auth.proof(key, auth.SANDBOXD, nonce, theirs, identity)):
        raise SandboxIdentityError(f"what answers at {address} does not know the sandbox's key")
    await loop.sock_sendall(sock, _auth({"proof": auth.proof(key, auth.CLIENT, nonce, theirs, identity)}))


def _auth(message: dict[str, Any]) -> bytes:
    return wire.frame(wire.AUTH, 0, wire.pack(message))


async def _read_auth(sock: socket.socket, address: Address) -> dict[str, Any]:
    kind, _stream, length = wire.HEADER.unpack(await _read_exactly(sock, wire.HEADER.size, address))
    if kind != wire.AUTH or length > auth.MAX_PAYLOAD:
        raise SandboxIdentityError(f"what answers at {address} is no sandboxd")
    try:
        answer = wire.unpack(await _read_exactly(sock, length, address))
    except wire.WireError:
        answer = None
    if not isinstance(answer, dict):
        raise SandboxIdentityError(f"what answers at {address} is no sandboxd")
    return answer


async def _read_exactly(sock: socket.socket, size: int, address: Address) -> bytes:
    data = b""
    while len(data) < size:
        piece = await asyncio.get_running_loop().sock_recv(sock, size - len(data))
        if not piece:
            raise SandboxUnreachableError(f"{address} closed the connection")
        data += piece
    return data
