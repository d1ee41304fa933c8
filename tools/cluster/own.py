"""The cluster that is made here: its parts brought up in order, and every trace of it removed again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from cluster import control_plane, node, sysctls
from cluster.build import build
from cluster.cgroups import remove_cgroup
from cluster.credentials import write_credentials
from cluster.images import PAUSE
from cluster.network import remove_network, set_up_network
from cluster.paths import ClusterError, Instance
from cluster.processes import Daemon, remove_tree, waited_for

COMPONENTS = [*control_plane.COMPONENTS, *node.COMPONENTS]
PROGRAMS = ["etcd", "containerd", "ctr", "runc", "iptables", "ip", "openssl", "unshare", "nsenter", "busybox"]


class OwnCluster:
    """A control plane and one node of an instance. Callers of all methods hold the instance's lock."""

    loads_images = True

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.root = instance.root
        self.kubeconfig = instance.kubeconfig

    def is_up(self) -> bool:
        return control_plane.node_is_ready(self.instance) and node.kubelet_listens(self.instance)

    def up(self) -> None:
        """Start what does not run, and wait until pods can be created. Raises ClusterError."""
        check_programs(PROGRAMS)
        if not self._restart_what_died():
            self._clean()
            self._start(build(), PAUSE.archive())
        ready = self.is_up
        Daemon("kubelet", self.root).until(ready, "a node that is Ready", seconds=90)

    def down(self) -> None:
        """Stop all of it and remove every trace; harmless when it is gone."""
        if self.root.exists():
            self._clean()

    def _clean(self) -> None:
        node.stop_node(self.instance)
        for name in reversed(control_plane.COMPONENTS):
            Daemon(name, self.root).stop()
        remove_cgroup(self.instance.cgroup)
        Daemon("namespace", self.root).stop(patience_s=0.2)
        remove_network(self.instance)
        remove_tree(self.root)
        sysctls.restore()

    def load(self, archive: Path) -> None:
        node.load_archive(self.instance, archive)

    def status(self) -> dict[str, int | None]:
        """The pid of each part, None where it does not run."""
        return {name: Daemon(name, self.root).pid() for name in COMPONENTS}

    def _start(self, binaries: Path, pause: Path) -> None:
        self.root.mkdir(parents=True, mode=0o700)
        sysctls.note_and_set()
        set_up_network(self.instance)
        write_credentials(self.instance)
        # The node first: kubelet takes 5 s before it looks for the API server, which is up by then.
        node.start_node(self.instance, binaries, pause)
        control_plane.start_control_plane(self.instance, binaries)

    def _restart_what_died(self) -> bool:
        """Whether the instance is whole again; False when it must be made anew.

        What still runs is never thrown away: somebody may have stopped a part on purpose.
        """
        daemons = {name: Daemon(name, self.root) for name in COMPONENTS}
        if daemons["namespace"].pid() is None or not all(each.record.exists() for each in daemons.values()):
            return False
        for daemon in daemons.values():
            daemon.start_again()
        if not waited_for(lambda: control_plane.api_server_is_ready(self.instance), 60):
            raise ClusterError("its API server does not answer; run `tools/devcluster down`, then `up`")
        return True


def check_programs(names: list[str]) -> None:
    """Raises ClusterError, with what to do, unless all of these can be run, as root."""
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        raise ClusterError(f"these programs are missing: {', '.join(missing)}; run `tools/bootstrap cluster`")
    if os.geteuid() != 0:
        raise ClusterError("only root can start containers here; run this as root")
