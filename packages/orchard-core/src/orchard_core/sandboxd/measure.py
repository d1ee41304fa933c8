"""What there is to say about the daemon and its sandbox, from /proc."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BEGAN = time.monotonic()


def collect() -> dict[str, Any]:
    """The daemon's resident bytes and age in seconds, and how many processes the sandbox has."""
    with open("/proc/self/statm", "rb") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "rss_bytes": resident,
        "uptime_s": time.monotonic() - _BEGAN,
        "processes": sum(name.isdigit() for name in os.listdir("/proc")),
    }
