"""SIGTERM for a daemon that is the first process of a container: obeyed from outside, ignored from within.

A process of the container may signal its first process like any other of its user. Who sent a signal is
told by a signalfd: a sender outside of the container's pid namespace has the process id 0.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found, unused-ignore]
import ctypes
import os
import struct

from .loop import READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .loop import Loop

# struct signalfd_siginfo: signo, errno, code, pid, then more, 128 bytes in all.
_INFO = struct.Struct("=IiiI112x")
_SIGSET_BYTES = 128
_SFD_NONBLOCK = os.O_NONBLOCK
_SFD_CLOEXEC = os.O_CLOEXEC


def on_terminate(loop: Loop, call: Callable[[], None]) -> None:
    """Have `call()` called when the engine, the kubelet or, outside of containers, anybody sends SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    mask = (ctypes.c_ubyte * _SIGSET_BYTES)()
    mask[(signal.SIGTERM - 1) // 8] = 1 << (signal.SIGTERM - 1) % 8
    fd = ctypes.CDLL(None, use_errno=True).signalfd(-1, ctypes.byref(mask), _SFD_NONBLOCK | _SFD_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "signalfd failed")

    def on_ready(_events: int) -> None:
        _signo, _errno, _code, sender = _INFO.unpack(os.read(fd, _INFO.size))
        if os.getpid() != 1 or sender == 0:
            call()

    loop.watch(fd, READ, on_ready)
