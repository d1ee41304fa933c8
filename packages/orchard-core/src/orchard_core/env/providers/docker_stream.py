"""Takes apart what a container engine sends over an exec's stream: stdout is the frames, stderr is for the log."""

from __future__ import annotations

import asyncio
import logging
import struct

_log = logging.getLogger(__name__)

# Stream (1: stdout, 2: stderr), three zero bytes, length.
_HEADER = struct.Struct("!BxxxI")
_STDOUT = 1


class Demultiplexer(asyncio.Protocol):
    """Hands the bytes of stdout to `inner`, and everything else of the transport as it is."""

    def __init__(self, inner: asyncio.Protocol) -> None:
        self._inner = inner
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            stream, length = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            if stream == _STDOUT:
                self._inner.data_received(payload)
            else:
                _log.warning("the sandbox's bridge says: %s", payload.decode("utf-8", "replace").strip())
