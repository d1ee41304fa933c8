"""Process trees: every command runs under its own supervisor, so that no child of it can get away.

The supervisor is a fork of sandboxd that is a child subreaper: whatever the command's children do
(setsid, double fork), they stay its descendants and are found and killed by walking /proc.
"""

from __future__ import annotations

# `_signal` and not `signal`: the wrapper imports `enum`, which alone would double the start time.
import _signal as signal  # type: ignore[import-not-found, unused-ignore]
import fcntl
import os
import struct
import sys
import termios

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from .users import User

REPORT = struct.Struct("!ci")

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_NEVER_CAUGHT = (signal.SIGKILL, signal.SIGSTOP)

# The workload goes first when memory runs out. Raising one's own score takes no privilege.
_OOM_SCORE = b"1000"

_prctl: Callable[..., int] | None = None


class Plan:
    """What a command is to run, where, and as whom."""

    __slots__ = ("argv", "cwd", "env", "user")

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: str, user: User | None) -> None:
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.user = user


def load_prctl() -> None:
    """Make `guard_process` usable. Raises ImportError or OSError where this Python has no ctypes."""
    global _prctl
    import ctypes

    _prctl = ctypes.CDLL(None).prctl


def guard_process() -> None:
    """Adopt orphaned descendants, and keep the workload (same user) from tracing this process."""
    assert _prctl is not None
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    _prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def die_with_parent() -> None:
    """Be killed when the process that started this one dies. To be called after the last change of user."""
    assert _prctl is not None
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def close_all_but(keep: int) -> None:
    """Close what was inherited above stderr, except `keep` (-1: nothing)."""
    _close_above(3, keep if keep > 2 else 3)


def spawn_supervised(plan: Plan, stdio: tuple[int, int, int], terminal: bool) -> tuple[int, int]:
    """Start a command under a supervisor; returns the supervisor's pid and a pipe of REPORTs.

    With `terminal`, stdio is one and becomes the command's controlling terminal.

    Reports are `p` (the command's pid), then `s` (its wait status); or only `f` (an errno: the
    supervisor could make no process). Raises OSError when not even a supervisor can be made.
    """
    read_end, write_end = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(read_end)
        os.close(write_end)
        raise
    if pid == 0:
        _as_child(lambda: _supervise(plan, stdio, write_end, terminal))
    os.close(write_end)
    return pid, read_end


def spawn_function(call: Callable[[], None], stdio: tuple[int, int, int]) -> int:
    """Run a Python function in a forked child whose stdio are the given descriptors; returns its pid.

    The child exits with 0, or with 1 after writing the error's text to its stderr.
    """
    pid = os.fork()
    if pid == 0:
        _as_child(lambda: _run_function(call, stdio))
    return pid


def exit_code(status: int) -> int:
    """A wait status as an exit code: negative for the signal that killed."""
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def living_tree(supervisor: int, own: Container[int]) -> set[int]:
    """The living (not zombie) processes below a supervisor, and those that lost theirs.

    The latter hang below this process without being among its `own` children: somebody killed their
    supervisor, and it can't be told whose they were.
    """
    children: dict[int, list[tuple[int, bool]]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it ended while we were looking
        children.setdefault(int(fields[1]), []).append((int(name), fields[0] in (b"Z", b"X")))
    todo = [entry for entry in children.get(os.getpid(), []) if entry[0] not in own]
    if supervisor in own:
        todo += children.get(supervisor, [])
    found: set[int] = set()
    while todo:
        pid, dead = todo.pop()
        todo += children.get(pid, [])
        if not dead:
            found.add(pid)
    return found


def kill_tree(supervisor: int, own: Container[int]) -> bool:
    """SIGKILL the `living_tree`; says whether there was any.

    All are stopped first, until no scan shows a new one: a stopped process can't fork away.
    """
    stopped: set[int] = set()
    for _ in range(20):
        fresh = living_tree(supervisor, own) - stopped
        if not fresh:
            break
        for pid in fresh:
            _signal_process(pid, signal.SIGSTOP)
        stopped |= fresh
    for pid in stopped:
        _signal_process(pid, signal.SIGKILL)
    return bool(stopped)


def signal_tree(supervisor: int, own: Container[int], number: int) -> int:
    """Send a signal to the `living_tree`; returns to how many processes."""
    found = living_tree(supervisor, own)
    for pid in found:
        _signal_process(pid, number)
    return len(found)


def _signal_process(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has just ended
    except PermissionError:
        pass  # a process of another user can't be below ours, unless its pid was reused


def _as_child(call: Callable[[], None]) -> None:
    """Run `call` in a fresh fork and never return into sandboxd's own stack."""
    status = 127
    try:
        call()
        status = 0
    finally:
        os._exit(status)


def _take_stdio(stdio: tuple[int, int, int]) -> None:
    """Make the descriptors 0, 1 and 2; the originals are all above 2."""
    for number, fd in enumerate(stdio):
        os.dup2(fd, number)


def _close_above(first: int, keep: int) -> None:
    os.closerange(first, keep)
    os.closerange(keep + 1, max(os.sysconf("SC_OPEN_MAX"), keep + 1))


def _supervise(plan: Plan, stdio: tuple[int, int, int], report: int, terminal: bool) -> None:
    _reset_signals()
    _take_stdio(stdio)
    # Also closes sandboxd's connection and the pipes of other commands, whose ends must be seen to close.
    _close_above(3, report)
    guard_process()
    try:
        command = os.fork()
    except OSError as error:
        os.write(report, REPORT.pack(b"f", error.errno or 0))
        return
    if command == 0:
        _as_child(lambda: _execute(plan, report, terminal))
    null = os.open("/dev/null", os.O_RDWR)
    _take_stdio((null, null, null))
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    while True:
        try:
            # Report first and reap then: if this process is killed between, sandboxd inherits the zombie.
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            return
        assert ended is not None
        if ended.si_pid == command:
            normal = ended.si_code == os.CLD_EXITED
            os.write(report, REPORT.pack(b"s", ended.si_status << 8 if normal else ended.si_status))
            os.close(report)
        os.waitpid(ended.si_pid, 0)


def _run_function(call: Callable[[], None], stdio: tuple[int, int, int]) -> None:
    _reset_signals()
    _take_stdio(stdio)
    _close_above(3, 3)
    try:
        call()
    finally:
        error = sys.exc_info()[1]
        if error is not None:
            os.write(2, (str(error) or type(error).__name__).encode("utf-8", "surrogateescape"))
            os._exit(1)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in range(1, signal.NSIG):
        if number not in _NEVER_CAUGHT and signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)


def _execute(plan: Plan, report: int, terminal: bool) -> None:
    os.setsid()
    if terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    _go_first_when_memory_ends()
    # Before the program can do anything, such as killing the supervisor.
    os.write(report, REPORT.pack(b"p", os.getpid()))
    error: OSError | None = None
    code = 127
    try:
        if plan.user is not None:
            os.setgroups(plan.user.groups)
            os.setresgid(plan.user.gid, plan.user.gid, plan.user.gid)
            os.setresuid(plan.user.uid, plan.user.uid, plan.user.uid)
        os.chdir(plan.cwd)
        for path in _candidates(plan.argv[0], plan.env):
            try:
                os.execve(path, list(plan.argv), dict(plan.env))
            except FileNotFoundError as not_found:
                error = error or not_found
            except OSError as other:
                error, code = other, 126
    except OSError as failed:
        error = failed
    reason = os.strerror(error.errno or 0) if error else "not found"
    os.write(2, f"{plan.argv[0]}: {reason}\n".encode("utf-8", "surrogateescape"))
    os._exit(code)


def _go_first_when_memory_ends() -> None:
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    except OSError:
        return  # no /proc, or one that is read-only
    os.write(fd, _OOM_SCORE)
    os.close(fd)


def _candidates(name: str, env: Mapping[str, str]) -> list[str]:
    if "/" in name:
        return [name]
    return [os.path.join(folder or ".", name) for folder in env.get("PATH", "/usr/bin:/bin").split(":")]
