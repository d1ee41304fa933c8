"""Where fetched harnesses are kept, and how one entry is made exactly once."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_root() -> Path:
    """$ORCHARD_CACHE, else $XDG_CACHE_HOME/orchard, else ~/.cache/orchard."""
    if chosen := os.environ.get("ORCHARD_CACHE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "orchard"


def cached_folder(name: str, build: Callable[[Path], None]) -> Path:
    """The cache folder `name`; `build` fills it if it isn't there yet.

    Safe among processes: a lock lets one build, and a folder appears whole or not at all.
    """
    parent = cache_root() / "harness"
    final = parent / name
    if final.is_dir():
        return final
    parent.mkdir(parents=True, exist_ok=True)
    with open(parent / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if final.is_dir():
            return final
        partial = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=parent))
        try:
            build(partial)
            partial.chmod(0o755)
            partial.rename(final)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return final
