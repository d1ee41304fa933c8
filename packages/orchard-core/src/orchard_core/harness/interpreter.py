"""A Python that exists both here and, at the same path, in the host-image sandbox."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

from orchard_core.env.spec import Mount
from orchard_core.errors import UsageError

SYSTEM_PYTHON = "/usr/bin/python3"
_PRINT_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


def sandbox_python(minimum: tuple[int, int]) -> tuple[str, str, tuple[Mount, ...]]:
    """(path, version like "3.11", mounts it needs) of an interpreter for programs in the sandbox.

    The system's own is preferred; else the one under this process, whose folder is then mounted.
    Raises UsageError when neither is new enough.
    """
    version = _version(SYSTEM_PYTHON)
    if version and _numbers(version) >= minimum:
        return SYSTEM_PYTHON, version, ()
    own = Path(sys.base_prefix) / "bin" / "python3"
    version = _version(str(own))
    if version and _numbers(version) >= minimum:
        return str(own), version, (Mount(sys.base_prefix, sys.base_prefix),)
    wanted = ".".join(map(str, minimum))
    raise UsageError(
        f"no Python {wanted} or newer that a sandbox could see; install the system package python3"
    )


@cache
def _version(python: str) -> str | None:
    if not Path(python).exists():
        return None
    done = subprocess.run(
        [python, "-I", "-S", "-c", _PRINT_VERSION], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
