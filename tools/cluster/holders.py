"""Who uses an instance: it goes down when the last living holder lets go, or when somebody says `down`."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.paths import ClusterError, Instance
from cluster.processes import start_time

BY_HAND = "by-hand"


@contextlib.contextmanager
def locked(instance: Instance) -> Iterator[None]:
    """One command at a time works on an instance."""
    instance.lock.parent.mkdir(parents=True, exist_ok=True)
    with instance.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Holders:
    """One file for each holding process, named by its pid; BY_HAND for the person who typed `up`."""

    folder: Path

    @staticmethod
    def of(instance: Instance) -> Holders:
        return Holders(instance.root.with_name(f"{instance.name}.holders"))

    def add(self, pid: int | None) -> None:
        """Note a process as a holder, or, without a pid, the person at the keyboard."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if pid is None:
            (self.folder / BY_HAND).touch()
            return
        started = start_time(pid)
        if not started:
            raise ClusterError(f"no process has the pid {pid}, so it cannot hold the cluster")
        (self.folder / str(pid)).write_text(started)

    def remove(self, pid: int) -> bool:
        """Whether it was one."""
        path = self.folder / str(pid)
        held = path.exists()
        path.unlink(missing_ok=True)
        return held

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def living(self) -> list[str]:
        """Their pids, and BY_HAND; those of processes that are gone are forgotten."""
        found = []
        for path in sorted(self.folder.glob("*")):
            if path.name == BY_HAND or start_time(int(path.name)) == path.read_text():
                found.append(path.name)
            else:
                path.unlink()
        return found
