"""The wire format that sandboxd and its clients share: frames, and the values inside them.

A frame is `type (1 byte), stream (4), length (4)`, big-endian, then `length` bytes of payload.
Values are encoded by hand rather than as JSON because `import json` alone would cost the daemon
several milliseconds of its start, and because output and file names are bytes.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

VERSION = 2

HEADER = struct.Struct("!BII")
MAX_PAYLOAD = 1 << 20
CHUNK = 1 << 16
# Bytes of DATA that may be under way on one stream and direction before the receiver grants more.
INITIAL_CREDIT = 1 << 18
CREDIT_STEP = 1 << 16

CONFIG, HELLO, OPEN, DATA, END, RESULT, ERROR, CREDIT, RESET, BYE, AUTH = range(1, 12)

# The first payload byte of a DATA frame.
CH_PLAIN, CH_STDOUT, CH_STDERR, CH_LIVE_STDOUT, CH_LIVE_STDERR, CH_SKIPPED = range(6)
# On CH_SKIPPED: the live channel, and how many of its bytes are kept no more. It may come in pieces.
SKIPPED = struct.Struct("!BQ")

_MAX_DEPTH = 16
_U32 = struct.Struct("!I")
_I64 = struct.Struct("!q")
_F64 = struct.Struct("!d")


class WireError(Exception):
    """The peer sent bytes that are no frame or no value."""


def frame(kind: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame as bytes."""
    if len(payload) > MAX_PAYLOAD:
        raise WireError(f"payload of {len(payload)} bytes is over the limit of {MAX_PAYLOAD}")
    return HEADER.pack(kind, stream, len(payload)) + payload


class FrameParser:
    """Cuts a byte stream into frames, however the bytes arrive; a longer payload is a WireError."""

    def __init__(self, max_payload: int = MAX_PAYLOAD) -> None:
        self._buffer = bytearray()
        self._max_payload = max_payload

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield each `(type, stream, payload)` that `data` completes."""
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= HEADER.size:
                kind, stream, length = HEADER.unpack_from(buffer, start)
                if length > self._max_payload or not CONFIG <= kind <= AUTH:
                    raise WireError("bad frame header")
                end = start + HEADER.size + length
                if len(buffer) < end:
                    break
                payload = bytes(buffer[start + HEADER.size : end])
                start = end
                yield kind, stream, payload
        finally:
            del buffer[:start]


def pack(value: Any) -> bytes:
    """Encode None, bool, int (64 bit), float, bytes, str, list/tuple and dict with str keys."""
    out = bytearray()
    _pack(value, out)
    return bytes(out)


def unpack(data: bytes) -> Any:
    """Decode what `pack` made. Raises WireError on anything else."""
    try:
        value, end = _unpack(data, 0, 0)
    except (struct.error, IndexError) as error:
        raise WireError("truncated value") from error
    if end != len(data):
        raise WireError("bytes after the value")
    return value


def _pack(value: Any, out: bytearray) -> None:
    if value is None:
        out += b"N"
    elif value is True:
        out += b"T"
    elif value is False:
        out += b"F"
    elif isinstance(value, int):
        out += b"i" + _I64.pack(value)
    elif isinstance(value, float):
        out += b"f" + _F64.pack(value)
    elif isinstance(value, str):
        _pack_bytes(b"s", value.encode("utf-8", "surrogateescape"), out)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        _pack_bytes(b"b", bytes(value), out)
    elif isinstance(value, (list, tuple)):
        out += b"l" + _U32.pack(len(value))
        for item in value:
            _pack(item, out)
    elif isinstance(value, dict):
        out += b"d" + _U32.pack(len(value))
        for key, item in value.items():
            _pack_bytes(b"s", key.encode("utf-8", "surrogateescape"), out)
            _pack(item, out)
    else:
        raise TypeError(f"cannot encode {type(value).__name__}")


def _pack_bytes(tag: bytes, raw: bytes, out: bytearray) -> None:
    out += tag
    out += _U32.pack(len(raw))
    out += raw


def _unpack(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if depth > _MAX_DEPTH:
        raise WireError("value nested too deeply")
    tag = data[at : at + 1]
    at += 1
    if tag == b"N":
        return None, at
    if tag == b"T":
        return True, at
    if tag == b"F":
        return False, at
    if tag == b"i":
        return _I64.unpack_from(data, at)[0], at + 8
    if tag == b"f":
        return _F64.unpack_from(data, at)[0], at + 8
    if tag in (b"s", b"b"):
        return _unpack_bytes(tag, data, at)
    if tag not in (b"l", b"d"):
        raise WireError(f"unknown tag {tag!r}")
    count = _U32.unpack_from(data, at)[0]
    at += 4
    if count > len(data) - at:
        raise WireError("truncated value")
    if tag == b"l":
        items = []
        for _ in range(count):
            item, at = _unpack(data, at, depth + 1)
            items.append(item)
        return items, at
    mapping = {}
    for _ in range(count):
        if data[at : at + 1] != b"s":
            raise WireError("key is no string")
        key, at = _unpack_bytes(b"s", data, at + 1)
        mapping[key], at = _unpack(data, at, depth + 1)
    return mapping, at


def _unpack_bytes(tag: bytes, data: bytes, at: int) -> tuple[Any, int]:
    size = _U32.unpack_from(data, at)[0]
    at += 4
    raw = data[at : at + size]
    if len(raw) != size:
        raise WireError("truncated value")
    if tag == b"b":
        return bytes(raw), at + size
    try:
        return raw.decode("utf-8", "surrogateescape"), at + size
    except UnicodeDecodeError as error:
        raise WireError("text is not UTF-8") from error
