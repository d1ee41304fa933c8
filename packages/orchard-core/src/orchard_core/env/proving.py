"""The client's part of the mutual proof that begins a connection to a listening sandboxd."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from orchard_core.env.errors import SandboxIdentityError
from orchard_core.sandboxd import auth, wire


@dataclass(frozen=True, slots=True)
class Credentials:
    """The sandbox's key (32 bytes) and the identity that it must prove (a pod's uid, or the sandbox's id)."""

    key: bytes = field(repr=False)
    identity: str


class Prover:
    """Makes the payloads of our two AUTH frames, and checks sandboxd's one between them."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._nonce = os.urandom(auth.NONCE_BYTES)

    def begin(self) -> bytes:
        """The first payload."""
        return wire.pack({"version": wire.VERSION, "nonce": self._nonce})

    def answer(self, payload: bytes) -> bytes:
        """The second payload, once `payload` has proven the sandbox. Raises SandboxIdentityError if it does not."""
        said = _unpack(payload)
        if said.get("version") != wire.VERSION:
            raise SandboxIdentityError("what answers there speaks another version of sandboxd's protocol")
        theirs = auth.as_nonce(said.get("nonce"))
        if said.get("identity") != self._credentials.identity or theirs is None:
            raise SandboxIdentityError("another sandbox answers there")
        key, identity = self._credentials.key, self._credentials.identity
        if not auth.same(said.get("proof"), auth.proof(key, auth.SANDBOXD, self._nonce, theirs, identity)):
            raise SandboxIdentityError("what answers there does not know the sandbox's key")
        return wire.pack({"proof": auth.proof(key, auth.CLIENT, self._nonce, theirs, identity)})


def _unpack(payload: bytes) -> dict[str, Any]:
    try:
        said = wire.unpack(payload)
    except wire.WireError:
        said = None
    if not isinstance(said, dict):
        raise SandboxIdentityError("what answers there is no sandboxd")
    return said
