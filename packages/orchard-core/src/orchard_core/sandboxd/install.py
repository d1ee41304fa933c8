"""An init container's work: puts the runtime folder where the workload's container sees it, and may close the network."""

from __future__ import annotations

import os
import shutil
import sys

from . import lock


def main() -> None:
    """Arguments: the runtime folder, the target folder, and, to close the pod's network, sandboxd's port."""
    source, target = sys.argv[1:3]
    for name in os.listdir(source):
        path, copy = os.path.join(source, name), os.path.join(target, name)
        if os.path.isdir(path):
            shutil.copytree(path, copy, symlinks=True)
        else:
            shutil.copy(path, copy)
    if len(sys.argv) > 3:
        lock.close(int(sys.argv[3]))
