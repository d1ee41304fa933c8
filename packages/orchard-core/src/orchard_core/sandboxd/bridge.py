"""Carries stdin and stdout to sandboxd's socket and back, for engines that give no other way in than an exec."""

from __future__ import annotations

import _socket as socket
import os
import select
import sys

from .listening import SOCKETS, address_of

_CHUNK = 1 << 18


def main() -> None:
    """Connect to the address in the first argument and relay until either side ends."""
    kind, address = address_of(sys.argv[1])
    sock = socket.socket(SOCKETS[kind], socket.SOCK_STREAM)
    sock.connect(address)
    while True:
        ready, _, _ = select.select([0, sock.fileno()], [], [])
        if 0 in ready:
            data = os.read(0, _CHUNK)
            if not data:
                return
            sock.sendall(data)
        if sock.fileno() in ready:
            view = memoryview(sock.recv(_CHUNK))
            if not view:
                return
            while view:
                view = view[os.write(1, view) :]
