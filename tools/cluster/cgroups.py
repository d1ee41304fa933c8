"""The cgroup of one instance, in every hierarchy (cgroup v1, v2 or both)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from cluster.paths import ClusterError
from cluster.processes import waited_for


def hierarchies() -> list[Path]:
    """The mount points of all cgroup hierarchies."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] in ("cgroup", "cgroup2"):
            found.append(Path(before.split(" ")[4]))
    return found


def make_cgroup(name: str) -> None:
    """Make it where it is missing, ready to take children."""
    for mount in hierarchies():
        path = mount / name.lstrip("/")
        path.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):  # v1: empty, and so unusable, unless copied
            if (mount / setting).exists():
                (path / setting).write_text((mount / setting).read_text())
        controllers = path / "cgroup.controllers"
        if controllers.exists():  # v2
            wanted = " ".join(f"+{name}" for name in (mount / "cgroup.controllers").read_text().split())
            (mount / "cgroup.subtree_control").write_text(wanted)
            (path / "cgroup.subtree_control").write_text(wanted)


def remove_cgroup(name: str) -> None:
    """Kill all that runs in it, and remove it from every hierarchy."""
    tops = [mount / name.lstrip("/") for mount in hierarchies()]
    if not waited_for(lambda: not _kill_all(tops), 15):
        raise ClusterError(f"processes in the cgroup {name} survive SIGKILL")
    for top in tops:
        for folder, _, _ in os.walk(top, topdown=False):
            Path(folder).rmdir()


def remove_if_unused(name: str) -> None:
    """Remove a cgroup that engines share, unless something is in it."""
    for mount in hierarchies():
        try:
            (mount / name.lstrip("/")).rmdir()
        except OSError:
            continue  # it is not there, or something is in it


def _kill_all(tops: list[Path]) -> int:
    """Send SIGKILL to every process in these cgroups; their number."""
    pids: set[int] = set()
    for top in tops:
        for listing in top.rglob("cgroup.procs"):
            pids.update(int(pid) for pid in listing.read_text().split())
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return len(pids)
