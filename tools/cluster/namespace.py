"""A mount namespace for container engines, kept by a process that does nothing else.

All mounts that an engine makes (overlays, volumes, network namespaces) are in that namespace and
vanish with it; so do its fixed folders (/var/log/pods, /var/lib/cni, /run/containerd), which are
folders of the instance here. So nothing of an engine that was killed can be left behind.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from cluster.paths import ClusterError
from cluster.processes import Daemon

COVERED = ["/run", "/var/lib", "/var/log"]
"""Folders of the machine in whose place the engine sees a folder of the instance."""


def start_namespace(root: Path) -> None:
    """Start the keeper; `root` and what is beside it (binaries) stay visible inside, wherever they are."""
    kept, ready = root.parent, root / "namespace-ready"
    lines = ["set -eu", f"exec 9<{shlex.quote(str(kept))}"]
    for folder in COVERED:
        private = root / "private" / folder.strip("/").replace("/", "-")
        private.mkdir(parents=True)
        lines.append(f"mount --bind {shlex.quote(str(private))} {folder}")
        if root.is_relative_to(folder):
            # By the open descriptor, and taken literally: the path leads to the empty folder by now.
            mount = f"mount --no-canonicalize --bind /proc/self/fd/9 {shlex.quote(str(kept))}"
            lines += [f"mkdir -p {shlex.quote(str(kept))}", mount]
    lines += ["exec 9<&-", f"touch {shlex.quote(str(ready))}", "exec sleep infinity"]
    daemon = Daemon("namespace", root)
    daemon.start(["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(lines)])
    daemon.until(ready.exists, "its mounts", seconds=10)


def inside(root: Path, command: list[str]) -> list[str]:
    """`command`, to be run in that namespace. Raises ClusterError when its keeper is gone."""
    pid = Daemon("namespace", root).pid()
    if pid is None:
        raise ClusterError(f"the mount namespace of {root} is gone; run `tools/devcluster up` again")
    return ["nsenter", "--target", str(pid), "--mount", "--", *command]
