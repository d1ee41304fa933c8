"""Sandboxes as containers of any Docker-compatible engine on this machine (Docker or Podman).

sandboxd, with its own interpreter, is shown read-only in a container of the image that was asked for,
and is its first process. It listens on a socket inside the container; the way to it is one exec, a
bridge, which carries the frames over the engine's own socket. So a container needs no network and
the workload sees nothing of the host's. What the mutual proof is for: the bridge's other end is
sandboxd, and no process of the workload.

A sandbox ends with the process that made it: sandboxd ends when its client has been gone for
`ORPHAN_S` seconds, and the engine then removes the container.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchard_core.env.bundle import cache_folder, sandbox_python, sandboxd_bundle
from orchard_core.env.client import SandboxClient
from orchard_core.env.connection import Connection
from orchard_core.env.dial import greet
from orchard_core.env.errors import (
    ProviderUnavailableError,
    SandboxError,
    SandboxExpiredError,
    SandboxGoneError,
    SandboxStartError,
    SandboxUnreachableError,
)
from orchard_core.env.handle import LeaseLeft
from orchard_core.env.link import RedialledLink
from orchard_core.env.providers.docker_stream import Demultiplexer
from orchard_core.env.proving import Credentials, Prover
from orchard_core.env.runtime import build_runtime, runtime_argv
from orchard_core.env.spec import SandboxSpec
from orchard_core.env.tunnels import Tunnels
from orchard_core.errors import UsageError
from orchard_core.options import options_from
from orchard_core.sandboxd import auth, wire

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

_log = logging.getLogger(__name__)

ROOT = "/.orchard"
ORPHAN_S = 15
_LISTEN = "unix:@orchard-sandboxd"
_DEFAULT_PIDS = 4096
_START_TIMEOUT_S = 30.0
_REMOVE_TRIES = 50
_REMOVE_PAUSE_S = 0.1
_SOCKETS = ("/var/run/docker.sock", "/run/podman/podman.sock")


@dataclass(frozen=True, slots=True)
class DockerOptions:
    """`url` of the engine (default: DOCKER_HOST, else the usual sockets), `image` for specs that name
    none ("host"), `oci_runtime` (e.g. "runsc") and `user` to run as instead of the image's."""

    url: str | None = None
    image: str | None = None
    oci_runtime: str | None = None
    user: str | None = None


class DockerSandbox(SandboxClient):
    """A sandbox made by `DockerProvider`."""

    def __init__(
        self, sandbox_id: str, spec: SandboxSpec, container: Container, credentials: Credentials
    ) -> None:
        self._id = sandbox_id
        self._spec = spec
        self._container = container
        self._credentials = credentials
        self._closed = False
        self._ends_at = time.monotonic() + spec.ttl_s
        tunnels = Tunnels()
        self._tunnels = tunnels
        super().__init__(RedialledLink(self._connect, tunnels, patience_s=_START_TIMEOUT_S))

    @property
    def id(self) -> str:
        return self._id

    @property
    def spec(self) -> SandboxSpec:
        return self._spec

    async def ready(self) -> None:
        """Wait until sandboxd answers."""
        await self._link.connection()

    async def close(self) -> None:
        """Destroy the container. May be called again."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._link.close()
        finally:
            await asyncio.to_thread(_remove, self._container)

    async def renew(self, *, ttl_s: float | None = None, idle_s: float | None = None) -> LeaseLeft:
        left = await super().renew(ttl_s=ttl_s, idle_s=idle_s)
        self._ends_at = time.monotonic() + left.ttl_left_s
        return left

    async def __aenter__(self) -> DockerSandbox:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _connect(self) -> Connection:
        """Open a bridge. Raises SandboxGoneError when the container has ended."""
        sock = await asyncio.to_thread(self._bridge)
        connection = Connection(self._tunnels.on_connect, Prover(self._credentials))
        return await greet(sock, connection, Demultiplexer(connection))

    def _bridge(self) -> socket.socket:
        import docker.errors

        argv = [*runtime_argv(ROOT, "bridge"), _LISTEN]
        assert self._container.client is not None
        api = self._container.client.api
        try:
            self._container.reload()
            if self._container.status not in ("running", "created"):
                raise SandboxGoneError(f"the sandbox is gone: {self._how_it_ended()}")
            exec_id = api.exec_create(self._container.id, argv, stdin=True, stdout=True, stderr=True)["Id"]
            stream: Any = api.exec_start(exec_id, socket=True)
        except docker.errors.NotFound as error:
            if time.monotonic() >= self._ends_at:
                raise SandboxExpiredError("the sandbox is gone: it reached its time limit (ttl_s)") from error
            raise SandboxGoneError("the sandbox is gone: its container was removed") from error
        except docker.errors.APIError as error:
            raise SandboxUnreachableError(
                f"the container engine refused a connection: {error.explanation}"
            ) from error
        # The engine's client wraps the socket, whose protocol has changed from HTTP to the exec's bytes.
        own: socket.socket = stream._sock.dup()
        own.setblocking(False)
        return own

    def _how_it_ended(self) -> str:
        state: Mapping[str, Any] = self._container.attrs.get("State", {})
        if state.get("OOMKilled"):
            return "it ran out of memory (raise memory_bytes)"
        last = self._container.logs(tail=1).decode("utf-8", "replace").strip()
        return f"its container ended with status {state.get('ExitCode')}" + (f" ({last})" if last else "")


def docker_from_options(options: Mapping[str, Any]) -> DockerProvider:
    """The provider with a recipe's or the command line's options."""
    return DockerProvider(options_from(DockerOptions, options, "the docker provider"))


@dataclass(slots=True)
class DockerProvider:
    """Makes sandboxes on a Docker-compatible engine."""

    options: DockerOptions = field(default_factory=DockerOptions)
    _client: DockerClient | None = None
    _runtime: Path | None = None
    _sandboxes: set[DockerSandbox] = field(default_factory=set)

    @property
    def name(self) -> str:
        return "docker"

    async def create(self, spec: SandboxSpec) -> DockerSandbox:
        """Start a container. Raises UsageError for a spec it can't meet, ProviderUnavailableError when
        there is no engine, SandboxStartError when this start failed."""
        image = self._image(spec)
        if self._client is None:
            self._client, self._runtime = await asyncio.to_thread(_prepare, self.options)
        sandbox = await asyncio.to_thread(self._start, spec, image)
        try:
            await sandbox.ready()
        except BaseException as error:
            await sandbox.close()
            if isinstance(error, SandboxGoneError):
                raise SandboxStartError(f"the sandbox did not start: {error}") from error
            raise
        self._sandboxes = {one for one in self._sandboxes if not one._closed} | {sandbox}
        return sandbox

    async def close(self) -> None:
        """Destroy every sandbox this provider made."""
        sandboxes, self._sandboxes = self._sandboxes, set()
        await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
        if self._client is not None:
            self._client.close()
            self._client = None

    async def __aenter__(self) -> DockerProvider:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _image(self, spec: SandboxSpec) -> str:
        image = self.options.image if spec.image == "host" else spec.image
        if image is None:
            raise UsageError(
                'the docker provider needs an image: set it in the sandbox\'s spec, or the option "image"'
            )
        if spec.disk_bytes is not None:
            raise UsageError("the docker provider can't bound a container's disk (disk_bytes)")
        return image

    def _start(self, spec: SandboxSpec, image: str) -> DockerSandbox:
        import docker.errors

        assert self._client is not None
        assert self._runtime is not None
        sandbox_id = f"orchard-{uuid.uuid4().hex[:12]}"
        key = secrets.token_bytes(auth.KEY_BYTES)
        try:
            container = self._client.containers.create(
                image,
                name=sandbox_id,
                entrypoint=runtime_argv(ROOT),
                command=[],
                **_container_options(spec, sandbox_id, key, self._runtime, self.options),
            )
        except docker.errors.ImageNotFound as error:
            raise SandboxStartError(f"the engine has no image {image!r}; pull or build it first") from error
        except docker.errors.APIError as error:
            raise SandboxStartError(f"the container could not be made: {error.explanation}") from error
        try:
            container.start()
        except docker.errors.APIError as error:
            _remove(container)
            raise SandboxStartError(f"the container did not start: {error.explanation}") from error
        return DockerSandbox(sandbox_id, spec, container, Credentials(key, sandbox_id))


def _container_options(
    spec: SandboxSpec, sandbox_id: str, key: bytes, runtime: Path, options: DockerOptions
) -> dict[str, Any]:
    volumes = {str(runtime): {"bind": ROOT, "mode": "ro"}}
    for mount in spec.mounts:
        if not os.path.exists(mount.source):
            raise SandboxStartError(f"the mount source {mount.source} does not exist")
        volumes[os.path.realpath(mount.source)] = {
            "bind": mount.target,
            "mode": "ro" if mount.read_only else "rw",
        }
    given: dict[str, Any] = {
        "environment": {
            "ORCHARD_SANDBOX_ID": sandbox_id,
            "ORCHARD_SANDBOX_KEY": key.hex(),
            "ORCHARD_LISTEN": _LISTEN,
            "ORCHARD_TTL_S": str(spec.ttl_s),
            "ORCHARD_IDLE_S": "" if spec.idle_s is None else str(spec.idle_s),
            "ORCHARD_ORPHAN_S": str(ORPHAN_S),
            "ORCHARD_WORKDIR": spec.workdir,
            "ORCHARD_ENV": wire.pack(dict(spec.env)).hex(),
        },
        "labels": {"orchard.dev/sandbox": sandbox_id, **spec.labels},
        "volumes": volumes,
        "network_mode": spec.network,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "pids_limit": _DEFAULT_PIDS if spec.pids is None else spec.pids,
        "auto_remove": True,
        "stdin_open": False,
    }
    if spec.network == "none":
        given["hostname"] = sandbox_id
    if spec.cpu is not None:
        given["nano_cpus"] = int(spec.cpu * 1e9)
    if spec.memory_bytes is not None:
        given["mem_limit"] = given["memswap_limit"] = spec.memory_bytes
    if options.user is not None:
        given["user"] = options.user
    if options.oci_runtime is not None:
        given["runtime"] = options.oci_runtime
    return given


def _prepare(options: DockerOptions) -> tuple[DockerClient, Path]:
    try:
        import docker
        import docker.errors
    except ImportError as error:
        raise ProviderUnavailableError(
            "the docker provider needs the extra: pip install 'orchard-core[docker]'"
        ) from error
    url = options.url or os.environ.get("DOCKER_HOST") or _usual_socket()
    if not url.startswith("unix://"):
        raise ProviderUnavailableError(
            f"the docker provider works with an engine on this machine (unix://), not {url}"
        )
    try:
        client = docker.DockerClient(base_url=url, timeout=60)
        client.ping()
    except docker.errors.DockerException as error:
        raise ProviderUnavailableError(f"no container engine answers at {url}: {error}") from error
    return client, cached_runtime()


def _usual_socket() -> str:
    own = f"/run/user/{os.getuid()}/podman/podman.sock"
    for path in (*_SOCKETS, own):
        if os.path.exists(path):
            return f"unix://{path}"
    raise ProviderUnavailableError(
        "there is no container engine: start Docker, or Podman's service (systemctl start podman.socket), or set DOCKER_HOST"
    )


def cached_runtime() -> Path:
    """The runtime folder for containers, built into the cache on first use."""
    name = hashlib.sha256(str(sandboxd_bundle(sandbox_python()[0])).encode()).hexdigest()[:24]
    target = cache_folder() / "runtime" / name
    if not target.exists():
        try:
            build_runtime(target)
        except OSError:
            if not target.exists():  # else another process was faster
                raise
    return target


def _remove(container: Container) -> None:
    """Remove a container, which the engine may be removing itself, having seen its end: that one of the two fails."""
    import docker.errors

    for _ in range(_REMOVE_TRIES):
        try:
            container.remove(force=True, v=True)
            return
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            said = error
            time.sleep(_REMOVE_PAUSE_S)
    raise SandboxError(f"the container engine could not remove a container: {said.explanation}") from said
