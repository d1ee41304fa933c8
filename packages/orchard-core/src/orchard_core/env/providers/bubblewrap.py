"""The embedded provider: sandboxes by bubblewrap, with nothing to install but `bwrap`.

What holds a workload: fresh user, pid, ipc, uts, cgroup and network namespaces; no capabilities,
no new privileges, no further user namespaces; a read-only system; tmpfs for all it can write. As
root the workload also gets a user id of the host that owns nothing, since root's own id may write
to /proc/sys even without a capability.

Limits: `disk_bytes` bounds each writable file system (/workspace, /home/agent, /tmp, /dev/shm) by
itself, and what they hold is memory of the host. `memory_bytes` bounds the address space of each
process (RLIMIT_AS), not their sum. `pids` bounds the processes and threads of the sandbox
(RLIMIT_NPROC in its own user namespace; Linux before 5.14 counts the user's other processes too);
sandboxd itself and one supervisor a command count. `cpu` is not enforced.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchard_core.env.bundle import sandbox_python, sandboxd_bundle
from orchard_core.env.client import SandboxClient
from orchard_core.env.connection import Connection
from orchard_core.env.errors import ProviderUnavailableError, SandboxStartError
from orchard_core.env.handle import LeaseLeft
from orchard_core.env.link import FixedLink
from orchard_core.env.providers import bwrap_arguments as arguments
from orchard_core.env.providers.bwrap_process import BwrapProcess
from orchard_core.env.spec import SandboxSpec
from orchard_core.env.tunnels import Tunnels
from orchard_core.errors import UsageError
from orchard_core.sandboxd import wire

START_TIMEOUT_S = 30.0
_CLOSE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class _Tools:
    """What was found on the host, once a provider."""

    bwrap: str
    python: str
    python_prefix: str | None
    bundle: str
    etc: str
    can_disable_userns: bool


class BubblewrapSandbox(SandboxClient):
    """A sandbox made by `BubblewrapProvider`."""

    # All that its commands can write is in file systems of its own, which begin empty.
    snapshot_since_start = False

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        connection: Connection,
        tunnels: Tunnels,
        process: BwrapProcess,
    ) -> None:
        super().__init__(FixedLink(connection, tunnels))
        self._connection = connection
        self._id = sandbox_id
        self._spec = spec
        self._process = process
        self.snapshot_roots = arguments.Layout(spec, None).writable()
        # sandboxd keeps the time too; this one holds even if sandboxd were stuck.
        self._ttl = self._watch_time(spec.ttl_s)

    @property
    def id(self) -> str:
        return self._id

    @property
    def spec(self) -> SandboxSpec:
        return self._spec

    async def close(self) -> None:
        """Destroy the sandbox; on return none of its processes is left. May be called again."""
        self._ttl.cancel()
        try:
            await self._link.close()
        finally:
            await self._process.end(_CLOSE_TIMEOUT_S)

    async def __aenter__(self) -> BubblewrapSandbox:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def renew(self, *, ttl_s: float | None = None, idle_s: float | None = None) -> LeaseLeft:
        left = await super().renew(ttl_s=ttl_s, idle_s=idle_s)
        self._ttl.cancel()
        self._ttl = self._watch_time(left.ttl_left_s)
        return left

    def _watch_time(self, seconds: float) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds + 1.0, self._expire)

    def _expire(self) -> None:
        self._connection.shut("it reached its time limit (ttl_s)")
        self._process.kill()


@dataclass(slots=True)
class BubblewrapProvider:
    """Makes sandboxes with bubblewrap on this machine, rootless or as root."""

    _sandboxes: set[BubblewrapSandbox] = field(default_factory=set)
    _tools: _Tools | None = None

    @property
    def name(self) -> str:
        return "bubblewrap"

    async def create(self, spec: SandboxSpec) -> BubblewrapSandbox:
        """Start a sandbox. Raises UsageError for a spec it can't meet, ProviderUnavailableError
        when bubblewrap can't work here, SandboxStartError when this start failed."""
        arguments.check_spec(spec)
        if self._tools is None:
            self._tools = await asyncio.to_thread(_find_tools)
        sandbox = await _start(self._tools, spec)
        for closed in [one for one in self._sandboxes if one._process.ended]:
            self._sandboxes.discard(closed)
        self._sandboxes.add(sandbox)
        return sandbox

    async def close(self) -> None:
        """Destroy every sandbox this provider made."""
        sandboxes, self._sandboxes = self._sandboxes, set()
        await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))

    async def __aenter__(self) -> BubblewrapProvider:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def bubblewrap_from_options(options: Mapping[str, Any]) -> BubblewrapProvider:
    """The provider; there is nothing to choose."""
    if options:
        raise UsageError(f"the bubblewrap provider takes no option {', '.join(map(repr, sorted(options)))}")
    return BubblewrapProvider()


def _find_tools() -> _Tools:
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise ProviderUnavailableError(
            "bubblewrap is not installed; install it with: apt-get install bubblewrap (or your system's package)"
        )
    told = subprocess.run([bwrap, "--help"], capture_output=True, text=True, check=False)
    python, prefix = sandbox_python()
    return _Tools(
        bwrap=bwrap,
        python=python,
        python_prefix=prefix,
        bundle=str(sandboxd_bundle(python)),
        etc=str(arguments.etc_folder()),
        can_disable_userns="--disable-userns" in told.stdout + told.stderr,
    )


async def _start(tools: _Tools, spec: SandboxSpec) -> BubblewrapSandbox:
    sandbox_id = f"orchard-{uuid.uuid4().hex[:12]}"
    as_root = os.geteuid() == 0
    layout = arguments.Layout(spec, tools.python_prefix)
    client = os.pidfd_open(os.getpid())
    argv = [
        tools.bwrap,
        *arguments.isolation(sandbox_id, spec, as_root, tools.can_disable_userns),
        *layout.arguments(tools.bundle, tools.etc),
        *arguments.sandboxd_command(tools.python, client),
    ]
    ours, theirs = socket.socketpair()
    try:
        ours.setblocking(False)
        ours.send(wire.frame(wire.CONFIG, 0, wire.pack(_config(spec, layout, as_root))))
        process = BwrapProcess.spawn(argv, theirs.fileno(), client, as_root)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        os.close(client)
    tunnels = Tunnels()
    try:
        _transport, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(tunnels.on_connect), sock=ours
        )
        await _await_hello(connection, process)
    except BaseException:
        ours.close()
        await process.end(_CLOSE_TIMEOUT_S)
        raise
    return BubblewrapSandbox(sandbox_id, spec, connection, tunnels, process)


async def _await_hello(connection: Connection, process: BwrapProcess) -> None:
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            await process.map_users()
            hello = await connection.hello
    except TimeoutError as error:
        connection.shut("it did not start")
        raise SandboxStartError(f"the sandbox did not start within {START_TIMEOUT_S:.0f} s") from error
    if hello is None:
        await process.end(_CLOSE_TIMEOUT_S)
        raise _start_error(process.stderr())
    if hello.get("version") != wire.VERSION:
        connection.shut("it speaks another protocol version")
        raise SandboxStartError("sandboxd in the sandbox speaks another protocol version")


def _start_error(stderr: str) -> Exception:
    told = stderr.strip() or "bwrap ended without a message"
    refused = ("namespace", "uid map", "Operation not permitted", "RTM_NEWADDR", "setting up")
    if told.startswith("bwrap:") and any(sign in told for sign in refused) and "source path" not in told:
        return ProviderUnavailableError(
            f"this system does not let bubblewrap make namespaces ({told}); allow unprivileged user namespaces "
            "(sysctl kernel.unprivileged_userns_clone=1, on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0; "
            "in a container, run it with user namespaces permitted)"
        )
    return SandboxStartError(f"the sandbox did not start: {told}")


def _config(spec: SandboxSpec, layout: arguments.Layout, as_root: bool) -> dict[str, Any]:
    return {
        "env": {**arguments.BASE_ENV, **spec.env},
        "workdir": spec.workdir,
        "ttl_s": float(spec.ttl_s),
        "idle_s": spec.idle_s,
        "pids": arguments.DEFAULT_PIDS if spec.pids is None else spec.pids,
        "memory_bytes": spec.memory_bytes,
        "user": arguments.INNER_ID if as_root else None,
        "own": layout.owned(),
    }
