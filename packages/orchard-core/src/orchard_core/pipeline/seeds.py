"""Seeds derived by name, so that a run's randomness does not depend on the order of its work."""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *names: object) -> int:
    """A 63-bit seed for the thing named; the same on every machine."""
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
