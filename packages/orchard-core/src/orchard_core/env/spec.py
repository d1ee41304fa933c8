"""What a sandbox needs, independent of the provider that makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class Mount:
    """A host path shown inside the sandbox; `source` must exist."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """The request for one sandbox.

    `image` is a provider's image name; the bubblewrap provider takes only "host" (the read-only
    host system). `memory_bytes` and `pids` are limits, `None` means the provider's default.
    `disk_bytes` bounds the writable file systems. `network` "host" is
    this machine's (bubblewrap, docker), "cluster" a pod's ordinary one. `ttl_s` ends the sandbox whatever
    happens, `idle_s` when it was not used for so long (no request, running command or open stream).
    """

    image: str = "host"
    workdir: str = "/workspace"
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    network: Literal["none", "host", "cluster"] = "none"
    cpu: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    pids: int | None = None
    ttl_s: float = 3600.0
    idle_s: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
