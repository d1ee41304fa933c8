"""Kernel settings that a node changes; the first instance notes what they were, the last one restores it."""

from __future__ import annotations

import json
from pathlib import Path

from cluster.paths import cache_root

CHANGED = [
    "net/ipv4/ip_forward",  # pods reach each other and the outside
    *("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops"),  # kubelet sets these
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"),
]


def note_and_set() -> None:
    note = _note()
    if not note.exists():
        before = {name: (Path("/proc/sys") / name).read_text() for name in CHANGED}
        note.write_text(json.dumps(before))
    (Path("/proc/sys") / CHANGED[0]).write_text("1")


def restore() -> None:
    """Put all back, unless another instance is there."""
    note = _note()
    others = [path for path in note.parent.glob("*/containerd.pid")]
    if others or not note.exists():
        return
    for name, value in json.loads(note.read_text()).items():
        path = Path("/proc/sys") / name
        if path.read_text() != value:
            path.write_text(value)
    note.unlink()


def _note() -> Path:
    return cache_root() / "devcluster" / "sysctls-before.json"
