"""Where the development cluster keeps its things, and the names that two instances must not share.

All state of an instance is in one folder, `${ORCHARD_CACHE}/devcluster/<instance>/`; what outlives
it (built binaries, images) is beside it. `ORCHARD_DEVCLUSTER` names the instance ("run" unless set).
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

KUBERNETES_VERSION = "1.20.2"
"""The version in Debian's kubernetes source package (bookworm), the oldest one that Orchard supports."""

API_PORT = 6443
"""Of the API server, on the instance's own bridge address, so it collides with nothing."""


class ClusterError(Exception):
    """The development cluster cannot do what was asked; the message says what to do about it."""


def cache_root() -> Path:
    """`$ORCHARD_CACHE`, or the user's cache folder for Orchard."""
    return Path(os.environ.get("ORCHARD_CACHE") or "~/.cache/orchard").expanduser().absolute()


@dataclass(frozen=True)
class Instance:
    """One cluster on this machine: its folder and everything of it that is visible outside the folder."""

    name: str
    root: Path

    @staticmethod
    def named(name: str = "") -> Instance:
        """The instance of that name; without one, that of `$ORCHARD_DEVCLUSTER` ("run" unless set)."""
        name = name or os.environ.get("ORCHARD_DEVCLUSTER") or "run"
        if not re.fullmatch(r"[a-z0-9]{1,12}", name):
            raise ClusterError(f"{name!r} names no instance: use 1 to 12 of a-z and 0-9")
        return Instance(name, cache_root() / "devcluster" / name)

    @property
    def number(self) -> int:
        """1 to 99: tells the addresses of one instance from those of another."""
        return 1 + hashlib.sha256(self.name.encode()).digest()[0] % 99

    @property
    def bridge(self) -> str:
        """The network interface that its pods hang on (at most 15 characters)."""
        return f"odc{self.name}"[:15]

    @property
    def pod_subnet(self) -> str:
        return f"10.{100 + self.number}.0.0/16"

    @property
    def gateway(self) -> str:
        """The bridge's address: the pods' gateway, the node's address, and where the API server listens."""
        return f"10.{100 + self.number}.0.1"

    @property
    def service_subnet(self) -> str:
        return f"10.200.{self.number}.0/24"

    @property
    def service_address(self) -> str:
        """The address of the service `kubernetes`, which leads to the API server."""
        return f"10.200.{self.number}.1"

    @property
    def cgroup(self) -> str:
        """The cgroup, in every hierarchy, under which its pods live."""
        return f"/orchard-devcluster-{self.name}"

    @property
    def node(self) -> str:
        return f"devcluster-{self.name}"

    @property
    def kubeconfig(self) -> Path:
        return self.root / "kubeconfig"

    @property
    def api_server(self) -> str:
        return f"https://{self.gateway}:{API_PORT}"

    @property
    def containerd_socket(self) -> Path:
        return self.root / "containerd.sock"

    @property
    def lock(self) -> Path:
        """Beside the folder, not in it: `down` removes the folder while it holds the lock."""
        return self.root.parent / f"{self.name}.lock"
