"""Closes a pod's network namespace, from an init container that may (NET_ADMIN): only answers leave it.

For clusters whose network does not enforce policies. What stays possible: connections to sandboxd's port,
made from outside, and the pod's own loopback. The rules are nftables', spoken over netlink directly, so
no program of the image is needed. The workload, which lacks NET_ADMIN, can't lift them.

Messages: https://docs.kernel.org/networking/netlink_spec/nftables.html
"""

from __future__ import annotations

import _socket as socket
import os
import struct
import sys

_NETLINK_NETFILTER = 12
_AF_NETLINK = 16
_SUBSYSTEM = 10 << 8  # NFNL_SUBSYS_NFTABLES
_BATCH_BEGIN, _BATCH_END = 16, 17
_NEW_TABLE, _NEW_CHAIN, _NEW_RULE = 0, 3, 6
_REQUEST, _ACK, _CREATE, _APPEND = 1, 4, 0x400, 0x800
_INET = 1  # NFPROTO_INET: both IPv4 and IPv6
_NESTED = 0x8000
_TABLE = b"orchard\0"
_HOOK_IN, _HOOK_OUT = 1, 3
_DROP, _ACCEPT = 0, 1
_ESTABLISHED_OR_RELATED = 1 << 1 | 1 << 2
_REGISTER = 1


def attribute(kind: int, payload: bytes) -> bytes:
    """A netlink attribute, padded to four bytes."""
    return struct.pack("=HH", len(payload) + 4, kind) + payload + b"\0" * (-len(payload) % 4)


def nested(kind: int, *inner: bytes) -> bytes:
    return attribute(kind | _NESTED, b"".join(inner))


def number(kind: int, value: int) -> bytes:
    """A 32-bit attribute, in network order as nftables wants it."""
    return attribute(kind, struct.pack("!I", value))


def _expression(name: bytes, *data: bytes) -> bytes:
    return nested(1, attribute(1, name + b"\0"), nested(2, *data))


def _compare(value: bytes, operator: int = 0) -> bytes:
    """The register equals (0) or does not equal (1) `value`."""
    return _expression(b"cmp", number(1, _REGISTER), number(2, operator), nested(3, attribute(1, value)))


def _established() -> bytes:
    load = _expression(b"ct", number(1, _REGISTER), number(2, 0))  # the connection's state
    mask = _expression(
        b"bitwise",
        number(1, _REGISTER),
        number(2, _REGISTER),
        number(3, 4),
        nested(4, attribute(1, struct.pack("=I", _ESTABLISHED_OR_RELATED))),
        nested(5, attribute(1, struct.pack("=I", 0))),
    )
    return load + mask + _compare(struct.pack("=I", 0), 1)


def _interface(key: int) -> bytes:
    """The packet's interface is loopback, which has index 1 in every network namespace."""
    return _expression(b"meta", number(2, key), number(1, _REGISTER)) + _compare(struct.pack("=I", 1))


def _to_port(port: int) -> bytes:
    protocol = _expression(b"meta", number(2, 16), number(1, _REGISTER)) + _compare(b"\x06")  # TCP
    destination = _expression(b"payload", number(1, _REGISTER), number(2, 2), number(3, 2), number(4, 2))
    return protocol + destination + _compare(struct.pack("!H", port))


def _accept() -> bytes:
    verdict = nested(2, number(1, _ACCEPT))
    return _expression(b"immediate", number(1, 0), nested(2, verdict))


def messages(port: int) -> list[tuple[int, int, bytes]]:
    """(type, flags, attributes) of the whole rule set for a pod whose sandboxd listens on `port`."""
    made = [(_NEW_TABLE, _CREATE, attribute(1, _TABLE))]
    for name, hook in ((b"in\0", _HOOK_IN), (b"out\0", _HOOK_OUT)):
        chain = [
            attribute(1, _TABLE),
            attribute(3, name),
            nested(4, number(1, hook), number(2, 0)),
            number(5, _DROP),
            attribute(7, b"filter\0"),
        ]
        made.append((_NEW_CHAIN, _CREATE, b"".join(chain)))
    rules = [
        (b"in\0", _established()),
        (b"in\0", _interface(4)),
        (b"in\0", _to_port(port)),
        (b"out\0", _established()),
        (b"out\0", _interface(5)),
    ]
    for name, match in rules:
        body = attribute(1, _TABLE) + attribute(2, name) + nested(4, match, _accept())
        made.append((_NEW_RULE, _CREATE | _APPEND, body))
    return made


def apply(port: int) -> None:
    """Install the rules, all or none. Raises OSError where the kernel refuses."""
    sock = socket.socket(_AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    batch = [_message(_BATCH_BEGIN, _REQUEST, 0, 0, b"", 10)]
    rules = messages(port)
    for index, (kind, flags, body) in enumerate(rules):
        batch.append(_message(_SUBSYSTEM | kind, _REQUEST | _ACK | flags, index + 1, _INET, body, 0))
    batch.append(_message(_BATCH_END, _REQUEST, len(rules) + 1, 0, b"", 10))
    sock.settimeout(5)
    sock.send(b"".join(batch))
    acknowledged = 0
    while acknowledged < len(rules):
        data = sock.recv(1 << 16)
        while data:
            length, _kind, _flags, _sequence, _pid, code = struct.unpack_from("=IHHIIi", data)
            if code:
                raise OSError(-code, os.strerror(-code))
            acknowledged += 1
            data = data[(length + 3) & ~3 :]
    sock.close()


def _message(kind: int, flags: int, sequence: int, family: int, body: bytes, resource: int) -> bytes:
    payload = struct.pack("!BBH", family, 0, resource) + body
    return struct.pack("=IHHII", len(payload) + 16, kind, flags, sequence, 0) + payload


def close(port: int) -> None:
    """Like `apply`, ending the program with the reason where the kernel refuses."""
    try:
        apply(port)
    except OSError as error:
        raise SystemExit(
            f"sandboxd: the pod's network can't be closed here: {error.strerror or error}"
        ) from error


def main() -> None:
    """Close the namespace; the argument is sandboxd's port."""
    close(int(sys.argv[1]))
