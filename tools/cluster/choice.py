"""Which cluster is used: that of KUBECONFIG, else one by kind or k3s if they are on PATH, else our own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Protocol

from cluster.own import OwnCluster
from cluster.paths import ClusterError, Instance, cache_root
from cluster.processes import Daemon, run


class Cluster(Protocol):
    """A cluster for tests."""

    root: Path
    """Where notes about it may be kept while it is up."""
    kubeconfig: Path
    loads_images: bool

    def is_up(self) -> bool: ...

    def up(self) -> None:
        """Make it answer; harmless when it does. Raises ClusterError."""

    def down(self) -> None:
        """Remove it, if it was made here."""

    def load(self, archive: Path) -> None:
        """Put the image in an archive on its node."""


class GivenCluster:
    """The cluster that KUBECONFIG names: used as it is, never started or stopped."""

    loads_images = False

    def __init__(self, instance: Instance, kubeconfig: str) -> None:
        self.root = instance.root
        self.kubeconfig = Path(kubeconfig)

    def is_up(self) -> bool:
        answer = run("kubectl", "--kubeconfig", self.kubeconfig, "get", "--raw", "/readyz", check=False)
        return answer.strip() == "ok"

    def up(self) -> None:
        """Check that it answers; ClusterError if it does not."""
        if not self.is_up():
            raise ClusterError(
                f"the cluster of KUBECONFIG={self.kubeconfig} does not answer; unset KUBECONFIG to have one made"
            )

    def down(self) -> None:
        return

    def load(self, archive: Path) -> None:
        raise ClusterError(
            f"{archive.name} cannot be put on the nodes of a cluster that is not ours: push it to a registry that "
            "they pull from, under the name that the tests use"
        )


class KindCluster:
    """A cluster in Docker, by kind."""

    loads_images = True

    def __init__(self, instance: Instance) -> None:
        self.name = f"orchard-{instance.name}"
        self.root = instance.root
        self.kubeconfig = instance.kubeconfig

    def is_up(self) -> bool:
        return self.name in run("kind", "get", "clusters", check=False).split()

    def up(self) -> None:
        if not self.is_up():
            self.root.mkdir(parents=True, exist_ok=True)
            run(
                "kind",
                "create",
                "cluster",
                "--name",
                self.name,
                "--kubeconfig",
                self.kubeconfig,
                "--wait",
                "120s",
            )

    def down(self) -> None:
        run("kind", "delete", "cluster", "--name", self.name)
        shutil.rmtree(self.root, ignore_errors=True)

    def load(self, archive: Path) -> None:
        run("kind", "load", "image-archive", archive, "--name", self.name)


class K3sCluster:
    """A k3s server of this machine; its data folder is the instance's."""

    loads_images = True

    def __init__(self, instance: Instance) -> None:
        self.root = instance.root
        self.kubeconfig = instance.kubeconfig

    def is_up(self) -> bool:
        nodes = run("k3s", "kubectl", "--kubeconfig", self.kubeconfig, "get", "nodes", check=False)
        return " Ready " in nodes

    def up(self) -> None:
        daemon = Daemon("k3s", self.root)
        if daemon.pid() is None:
            self.root.mkdir(parents=True, exist_ok=True)
            serve = ["k3s", "server", f"--data-dir={self.root}/k3s", f"--write-kubeconfig={self.kubeconfig}"]
            daemon.start([*serve, "--disable=traefik,servicelb,metrics-server"])
        daemon.until(self.is_up, "a node that is Ready", seconds=120)

    def down(self) -> None:
        Daemon("k3s", self.root).stop(patience_s=20)
        script = shutil.which("k3s-killall.sh")
        if script is not None:
            run(script)
        shutil.rmtree(self.root, ignore_errors=True)

    def load(self, archive: Path) -> None:
        run("k3s", "ctr", "images", "import", archive)


def cluster_of(instance: Instance) -> Cluster:
    """The cluster that an instance stands for on this machine."""
    given = os.environ.get("KUBECONFIG", "")
    if given and not Path(given).is_relative_to(cache_root() / "devcluster"):
        return GivenCluster(instance, given)
    if shutil.which("kind") is not None:
        return KindCluster(instance)
    if shutil.which("k3s") is not None:
        return K3sCluster(instance)
    return OwnCluster(instance)
