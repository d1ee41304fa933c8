"""The node of one instance: containerd and kubelet, in a mount namespace of their own."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

from cluster.cgroups import make_cgroup
from cluster.namespace import inside, start_namespace
from cluster.paths import Instance
from cluster.processes import Daemon, run, waited_for

COMPONENTS = ["namespace", "containerd", "kubelet"]
KUBELET_PORT = 10250
PAUSE_IMAGE = "orchard.local/pause:dev"


def start_node(instance: Instance, binaries: Path, pause_archive: Path) -> None:
    """Start the node and load the pause image; returns as soon as kubelet runs."""
    make_cgroup(instance.cgroup)
    start_namespace(instance.root)
    _start_containerd(instance)
    load_archive(instance, pause_archive)
    _start_kubelet(instance, binaries)


def load_archive(instance: Instance, archive: Path) -> None:
    """Import an OCI or Docker archive into the node's containerd."""
    run(*ctr(instance), "images", "import", archive)


def ctr(instance: Instance) -> list[str]:
    return ["ctr", "--address", str(instance.containerd_socket), "--namespace", "k8s.io"]


def _start_containerd(instance: Instance) -> None:
    folder = instance.root / "containerd"
    cni = folder / "cni"
    cni.mkdir(parents=True)
    network = {
        "cniVersion": "0.4.0",
        "name": instance.node,
        "plugins": [
            {
                "type": "bridge",
                "bridge": instance.bridge,
                "isGateway": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": instance.pod_subnet}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
        ],
    }
    (cni / "10-devcluster.conflist").write_text(json.dumps(network))
    config = folder / "config.toml"
    config.write_text(
        _CONTAINERD_CONFIG.format(
            folder=folder, socket=instance.containerd_socket, cni=cni, pause=PAUSE_IMAGE
        )
    )
    daemon = Daemon("containerd", instance.root)
    daemon.start(inside(instance.root, ["containerd", "--config", str(config)]))
    version = [*ctr(instance), "version"]
    daemon.until(lambda: "Server" in run(*version, check=False), "answering", seconds=30)


def _start_kubelet(instance: Instance, binaries: Path) -> None:
    credentials, folder = instance.root / "credentials", instance.root / "kubelet"
    folder.mkdir()
    shutil.copy("/etc/resolv.conf", folder / "resolv.conf")  # it may be a link into /run
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": instance.gateway,
        "port": KUBELET_PORT,
        "readOnlyPort": 0,
        "healthzPort": 0,
        "tlsCertFile": f"{credentials}/kubelet.crt",
        "tlsPrivateKeyFile": f"{credentials}/kubelet.key",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{credentials}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": instance.cgroup,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "maxPods": 250,
        "serializeImagePulls": False,
        "nodeStatusUpdateFrequency": "2s",  # it is sent when it has changed; Ready is one such change
        "kubeAPIQPS": 300,
        "kubeAPIBurst": 500,
        "eventRecordQPS": 50,
        "eventBurst": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,  # images come by `load-image` only, so none may be dropped
        "makeIPTablesUtilChains": False,
        # Nothing answers there, so a look-up fails at once instead of waiting.
        "clusterDNS": [instance.gateway],
        "resolvConf": f"{folder}/resolv.conf",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    Daemon("kubelet", instance.root).start(
        inside(
            instance.root,
            [
                str(binaries / "kubelet"),
                f"--config={folder}/config.json",
                f"--kubeconfig={credentials}/kubelet.kubeconfig",
                f"--root-dir={folder}/root",
                f"--hostname-override={instance.node}",
                f"--node-ip={instance.gateway}",
                "--container-runtime=remote",
                f"--container-runtime-endpoint=unix://{instance.containerd_socket}",
            ],
        ),
        # It would look for a cloud's metadata service, and wait, before it does anything.
        environment={"AWS_EC2_METADATA_DISABLED": "true"},
    )


def kubelet_listens(instance: Instance) -> bool:
    """Whether it is there now; the API server says Ready for a while after it has gone."""
    with socket.socket() as probe:
        probe.settimeout(2)
        return probe.connect_ex((instance.gateway, KUBELET_PORT)) == 0


def stop_node(instance: Instance) -> None:
    """Stop kubelet, containerd and what containerd left beside its containers; not the containers."""
    for name in ("kubelet", "containerd"):
        Daemon(name, instance.root).stop()
    waited_for(lambda: not _kill_shims(instance), 10)


def _kill_shims(instance: Instance) -> int:
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"containerd-shim" in words[0] and str(instance.containerd_socket).encode() in words:
            run("kill", "-KILL", folder.name, check=False)
            found += 1
    return found


_CONTAINERD_CONFIG = """
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[grpc]
address = "{socket}"
[ttrpc]
address = "{socket}.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
# The machine may lack CAP_SYS_RESOURCE; without it no pod would start otherwise.
restrict_oom_score_adj = true
disable_apparmor = true
tolerate_missing_hugetlb_controller = true
netns_mounts_under_state_dir = true
stream_server_address = "127.0.0.1"
stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{cni}"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"""
