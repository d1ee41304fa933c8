"""Podman with Docker's API on a socket of its own, so that the `docker` package has an engine to talk to.

Its storage, its network and its configuration belong to the instance: nothing is shared with the
machine's own Podman, and nothing stays when it is stopped.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cluster.cgroups import remove_if_unused
from cluster.namespace import inside, start_namespace
from cluster.network import remove_chains, remove_link, remove_rules
from cluster.own import check_programs
from cluster.paths import Instance
from cluster.processes import Daemon, remove_tree, run

PODMAN_PROGRAMS = ["podman", "runc", "iptables", "ip", "unshare", "nsenter", "busybox"]


@dataclass(frozen=True)
class Podman:
    """The Podman service of one instance."""

    root: Path
    name: str
    number: int

    @staticmethod
    def of(instance: Instance) -> Podman:
        return Podman(instance.root.with_name(f"{instance.name}-podman"), instance.name, instance.number)

    @property
    def socket(self) -> Path:
        return self.root / "podman.sock"

    @property
    def docker_host(self) -> str:
        """What `DOCKER_HOST` must be."""
        return f"unix://{self.socket}"

    @property
    def bridge(self) -> str:
        return f"odp{self.name}"[:15]

    @property
    def subnet(self) -> str:
        return f"10.201.{self.number}.0/24"

    def is_up(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
            except OSError:
                return False
        return Daemon("podman", self.root).pid() is not None

    def up(self) -> None:
        """Start it (1 s); harmless when it runs. The caller holds the instance's lock."""
        if self.is_up():
            return
        check_programs(PODMAN_PROGRAMS)
        self._clean()
        self.root.mkdir(parents=True, mode=0o700)
        start_namespace(self.root)
        self._configure()
        daemon = Daemon("podman", self.root)
        serve = ["podman", "system", "service", "--time=0", self.docker_host]
        daemon.start(inside(self.root, serve), environment=self._environment())
        daemon.until(self.is_up, "listening", seconds=30)

    def down(self) -> None:
        """Stop it and remove its containers, images and network; harmless when it is gone."""
        if self.root.exists():
            self._clean()

    def _clean(self) -> None:
        if Daemon("namespace", self.root).pid() is not None and (self.root / "containers.conf").exists():
            self.podman("rm", "--all", "--force", "--time=0", check=False)
        Daemon("podman", self.root).stop()
        Daemon("namespace", self.root).stop(patience_s=0.5)
        remove_rules(self._mark)
        remove_chains(["CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-MASQ"])
        remove_link(self.bridge)
        remove_if_unused("/libpod_parent")
        remove_tree(self.root)

    def podman(self, *arguments: str, stdin: IO[bytes] | None = None, check: bool = True) -> str:
        """Run podman's own command line against the same storage."""
        command = inside(self.root, ["podman", *arguments])
        return run("env", *self._assignments(), *command, stdin=stdin, check=check)

    def become(self, arguments: list[str]) -> None:
        """Replace this process by podman's command line."""
        os.execvpe(
            "nsenter", inside(self.root, ["podman", *arguments]), {**os.environ, **self._environment()}
        )

    def load(self, archive: Path) -> None:
        # Not by its path: that may lead elsewhere inside the namespace.
        with archive.open("rb") as content:
            self.podman("load", "--quiet", stdin=content)

    def save(self, image: str, target: Path) -> None:
        """Write an image that it has to an archive."""
        staged = self.root / "saved.tar"
        self.podman("save", "--quiet", "--output", str(staged), image)
        shutil.move(staged, target)

    @property
    def _mark(self) -> str:
        return f"orchard-podman-{self.name}"

    def _environment(self) -> Mapping[str, str]:
        return {
            "CONTAINERS_CONF": f"{self.root}/containers.conf",
            "CONTAINERS_STORAGE_CONF": f"{self.root}/storage.conf",
            "TMPDIR": f"{self.root}/tmp",
        }

    def _assignments(self) -> list[str]:
        return [f"{name}={value}" for name, value in self._environment().items()]

    def _configure(self) -> None:
        networks = self.root / "networks"
        networks.mkdir()
        (self.root / "tmp").mkdir()
        (self.root / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{self.root}/storage"\nrunroot = "{self.root}/run"\n'
        )
        (self.root / "containers.conf").write_text(_CONTAINERS_CONF.format(root=self.root))
        addresses = {
            "type": "host-local",
            "ranges": [[{"subnet": self.subnet}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {"type": "bridge", "bridge": self.bridge, "isGateway": True, "hairpinMode": True}
        network = {
            "cniVersion": "0.4.0",
            "name": "podman",
            "plugins": [
                {**bridge, "ipam": addresses},
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        }
        (networks / "87-podman.conflist").write_text(json.dumps(network))
        comment = ("-m", "comment", "--comment", self._mark)
        inwards = ("-s", self.subnet, "!", "-d", self.subnet, "-j", "MASQUERADE")
        run("iptables", "-w", "-t", "nat", "-A", "POSTROUTING", *inwards, *comment)
        for direction in ("-i", "-o"):
            run("iptables", "-w", "-A", "FORWARD", direction, self.bridge, "-j", "ACCEPT", *comment)


_CONTAINERS_CONF = """
[containers]
# The machine may lack CAP_SYS_RESOURCE, so no limit may be above its own.
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "cni"
network_config_dir = "{root}/networks"
cni_plugin_dirs = ["/usr/lib/cni"]
"""
