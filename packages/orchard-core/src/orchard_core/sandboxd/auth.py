"""How a client and a listening sandboxd prove themselves to each other; used by both ends.

Each side sends a nonce of its own and answers the other's with an HMAC-SHA256 under the sandbox's key
over both nonces, its role and the sandbox's identity. So no recorded message is of any use later, the
key never travels, and a client that reached another sandbox by a re-used address finds out.
"""

from __future__ import annotations

import hmac

NONCE_BYTES = 32
KEY_BYTES = 32
# What is said before both are proven fits in this; a stranger can't make the daemon hold more.
MAX_PAYLOAD = 4096

CLIENT = b"client"
SANDBOXD = b"sandboxd"


def proof(key: bytes, role: bytes, client_nonce: bytes, server_nonce: bytes, identity: str) -> bytes:
    """32 bytes that only the holder of `key` can make, in this role, for this exchange."""
    parts = (b"orchard-sandboxd-1", role, client_nonce, server_nonce, identity.encode())
    message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(key, message, "sha256")


def same(one: object, other: bytes) -> bool:
    """Compare in constant time; whatever is not bytes is different."""
    return isinstance(one, bytes) and hmac.compare_digest(one, other)


def as_nonce(value: object) -> bytes | None:
    """`value` if it is a nonce."""
    return value if isinstance(value, bytes) and len(value) == NONCE_BYTES else None
