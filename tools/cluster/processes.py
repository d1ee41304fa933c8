"""Long-running processes that outlive the command that started them, known by pid files.

A pid file holds the pid and the start time of the process, so that a recycled pid is never taken for
the process, still less killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from cluster.paths import ClusterError


def start_time(pid: int) -> str:
    """When the process began, in the kernel's ticks since boot; "" if it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]


class Daemon:
    """One such process; its pid, command and log are files in `folder`."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.record = folder / f"{name}.pid"
        self.log = folder / f"{name}.log"

    def start(self, command: Sequence[str], *, environment: Mapping[str, str] | None = None) -> None:
        """Start it, in a session of its own, with all output in its log."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        self.record.write_text(
            json.dumps({"pid": process.pid, "start": start_time(process.pid), "command": list(command)})
        )

    def start_again(self) -> None:
        """Start it with the command that it was last started with; does nothing while it runs."""
        if self.pid() is None:
            self.start(json.loads(self.record.read_text())["command"])

    def pid(self) -> int | None:
        """Its pid while it runs."""
        try:
            record = json.loads(self.record.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        pid = int(record["pid"])
        return pid if record["start"] and start_time(pid) == record["start"] else None

    def stop(self, *, patience_s: float = 5.0) -> None:
        """End it: SIGTERM, and SIGKILL when it is still there after `patience_s`."""
        pid = self.pid()
        if pid is None:
            return
        for number, seconds in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 10.0)):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return
            if waited_for(lambda: self.pid() is None, seconds):
                return
        raise ClusterError(f"{self.name} (pid {pid}) does not end, even by SIGKILL")

    def tail(self, lines: int = 15) -> str:
        """The end of its log, for an error message."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""

    def until(self, ready: Callable[[], bool], what: str, *, seconds: float) -> None:
        """Wait for `ready()`. Raises ClusterError, with the end of the log, if it dies or takes too long."""
        if waited_for(lambda: self.pid() is None or ready(), seconds) and self.pid() is not None:
            return
        state = "died" if self.pid() is None else f"still runs after {seconds:.0f} s"
        raise ClusterError(f"{self.name} {state} without {what}; {self.log} ends with:\n{self.tail()}")


def waited_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether `condition()` came true in that time; looked at 20 times a second."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def run(*command: str | Path, stdin: IO[bytes] | None = None, check: bool = True) -> str:
    """Standard output of a short command; ClusterError with its own words when it fails."""
    done = subprocess.run(
        [str(part) for part in command], stdin=stdin, capture_output=True, text=True, check=False
    )
    if check and done.returncode != 0:
        words = " ".join(str(part) for part in command)
        raise ClusterError(f"{words} failed (exit {done.returncode}): {done.stderr.strip()[-2000:]}")
    return done.stdout


def remove_tree(root: Path) -> None:
    """Delete a folder; mounts in it vanish only a moment after the last process of their namespace."""
    if not waited_for(lambda: _try_to_remove(root), 10):
        raise ClusterError(f"{root} cannot be removed; `rm -rf` says why")


def _try_to_remove(root: Path) -> bool:
    return subprocess.run(["rm", "-rf", root], capture_output=True, check=False).returncode == 0
