"""Forks simulated sandboxes from one process that has sandboxd loaded; run by tools/simnode, as root.

usage: python3 -I -S zygote.py FD FOLDER_WITH_SANDBOXD

Reads JSON lines from the socket FD: {"start": uid, "env": {...}, "folder": path, "user": number} and
{"signal": number, "to": uid}; writes {"exited": uid, "code": number}. Each sandbox has
a process and a mount namespace of its own, as a container has, so that its end is the end of all its
processes; it has neither a file system nor a network of its own, so it must run no code that is not trusted.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import platform
import select
import signal
import socket
import sys
from collections.abc import Callable

CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
PR_SET_PDEATHSIG = 1
SYS_CLONE = {"x86_64": 56, "aarch64": 220}

# PyDLL keeps the interpreter's lock, so that the child of a raw clone owns it too.
libc = ctypes.PyDLL(None, use_errno=True)


def fork_into_namespaces() -> int:
    """fork(), with the child as the first process of a new process namespace."""
    number = SYS_CLONE[platform.machine()]
    pid = int(libc.syscall(number, CLONE_NEWNS | CLONE_NEWPID | signal.SIGCHLD, 0, 0, 0, 0))
    if pid < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    return pid


def mount(source: bytes | None, target: bytes, kind: bytes | None, flags: int) -> None:
    if libc.mount(source, target, kind, flags, None) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def become_sandbox(order: dict[str, object], main: Callable[[], None]) -> None:
    """In the child: its own /proc, folder, user, environment and log; then sandboxd. Never returns."""
    mount(None, b"/", None, MS_REC | MS_PRIVATE)
    mount(b"proc", b"/proc", b"proc", 0)
    folder, user, env = str(order["folder"]), order["user"], order["env"]
    assert isinstance(user, int)
    assert isinstance(env, dict)
    log = os.open(f"{folder}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open("/dev/null", os.O_RDWR)
    for number, source in enumerate((null, log, log)):
        os.dup2(source, number)
    os.closerange(3, 65536)
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if "ORCHARD_LISTEN" in env:
        main()
    else:
        signal.pause()


class Zygote:
    """The parent: takes orders, forks, and says who ended."""

    def __init__(self, sock: socket.socket, main: Callable[[], None]) -> None:
        self._sock = sock
        self._main = main
        self._pids: dict[str, int] = {}
        self._uids: dict[int, str] = {}
        self._input = b""
        self._wake, wake_write = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def serve(self) -> None:
        """Until the socket closes; all sandboxes die with this process."""
        while True:
            ready, _, _ = select.select([self._sock.fileno(), self._wake], [], [])
            if self._wake in ready:
                os.read(self._wake, 65536)
                self._reap()
            if self._sock.fileno() in ready:
                data = self._sock.recv(1 << 20)
                if not data:
                    return
                *lines, self._input = (self._input + data).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))

    def _obey(self, order: dict[str, object]) -> None:
        if "start" in order:
            self._start(str(order["start"]), order)
        elif str(order["to"]) in self._pids:
            assert isinstance(order["signal"], int)
            os.kill(self._pids[str(order["to"])], order["signal"])

    def _start(self, uid: str, order: dict[str, object]) -> None:
        pid = fork_into_namespaces()
        if pid == 0:
            status = 127
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                become_sandbox(order, self._main)
                status = 0
            finally:
                os._exit(status)
        self._pids[uid], self._uids[pid] = pid, uid

    def _reap(self) -> None:
        while self._uids:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            uid = self._uids.pop(pid)
            del self._pids[uid]
            code = os.waitstatus_to_exitcode(status)
            self._tell({"exited": uid, "code": code if code >= 0 else 128 - code})

    def _tell(self, message: dict[str, object]) -> None:
        self._sock.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.path.append(sys.argv[2])
    importlib.import_module("sandboxd.listening")
    sandboxd_main = importlib.import_module("sandboxd.main").main

    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    gc.collect()
    gc.freeze()  # so that a collection in a child does not copy what all share
    Zygote(socket.socket(fileno=int(sys.argv[1])), sandboxd_main).serve()
