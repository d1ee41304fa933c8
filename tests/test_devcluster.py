"""tools/devcluster: one `up` gives a cluster that works, and `down` leaves the machine as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.processes import start_time
from engines import ROOT, needs_docker, needs_kubernetes

pytestmark = pytest.mark.slow
INSTANCE = "leaktest"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "probe"},
    "spec": {
        "terminationGracePeriodSeconds": 0,
        "volumes": [
            {"name": "scratch", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
        ],
        "containers": [
            {
                "name": "main",
                "image": "orchard.local/busybox:dev",
                "imagePullPolicy": "Never",
                "command": ["sleep", "1000"],
                "volumeMounts": [
                    {"name": "scratch", "mountPath": "/scratch"},
                    {"name": "memory", "mountPath": "/memory"},
                ],
            }
        ],
    },
}


def tool(name: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / name), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ORCHARD_DEVCLUSTER": INSTANCE, "KUBECONFIG": ""},
    )
    assert done.returncode == 0 or not check, done.stderr
    return done


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


FIXED_FOLDERS = (
    "/run/containerd",
    "/var/lib/kubelet",
    "/var/log/pods",
    "/var/lib/cni",
    "/opt/containerd",
    "/opt/cni",
)


def traces() -> dict[str, set[str]]:
    """All that this instance has outside its folder, by kind; other instances may run beside it."""
    bridges = [name for name in os.listdir("/sys/class/net") if INSTANCE in name]
    ports = [os.listdir(f"/sys/class/net/{bridge}/brif") for bridge in bridges]
    rules = output("iptables-save").splitlines()
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    cgroups = [str(path) for path in Path("/sys/fs/cgroup").glob("*/*") if INSTANCE in path.name]
    return {
        "processes": {f"{pid} {start_time(pid)}" for pid in pids()},
        "network namespaces": {network_namespace(pid) for pid in pids()} - {network_namespace(os.getpid())},
        "links": {*bridges, *(port for names in ports for port in names)},
        "iptables": {line for line in rules if INSTANCE in line},
        "mounts": {line for line in mounts if INSTANCE in line},
        "cgroups": set(cgroups),
    }


def pids() -> set[int]:
    """The instance's processes and those of its pods and containers."""
    found = {
        int(line.split()[0])
        for line in output("ps", "-ww", "-eo", "pid,args").splitlines()[1:]
        if INSTANCE in line
    }
    for listing in Path("/sys/fs/cgroup/memory").glob(f"*{INSTANCE}*/**/cgroup.procs"):
        found.update(int(pid) for pid in listing.read_text().split())
    return {pid for pid in found if start_time(pid)}


def network_namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net").strip("net:[]")


def settings() -> dict[str, str]:
    names = ("net/ipv4/ip_forward", "vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")
    return {name: (Path("/proc/sys") / name).read_text() for name in names}


@pytest.fixture
def instance() -> Iterator[Path]:
    needs_kubernetes()
    needs_docker()
    tool("devcluster", "down")
    yield Path(json.loads(tool("devcluster", "status", check=False).stdout)["kubeconfig"])
    tool("devcluster", "down")


def kubectl(kubeconfig: Path, *arguments: str, stdin: str | None = None) -> str:
    command = ["kubectl", "--kubeconfig", str(kubeconfig), *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def start_pod(kubeconfig: Path) -> None:
    kubectl(kubeconfig, "apply", "-f", "-", stdin=json.dumps(POD))
    kubectl(kubeconfig, "wait", "--for=condition=Ready", "pod/probe", "--timeout=60s")


def test_up_gives_a_node_whose_pods_run_and_down_leaves_nothing(instance: Path) -> None:
    assert not any(traces().values())
    folders, before = {path for path in FIXED_FOLDERS if Path(path).exists()}, settings()
    others = list(instance.parent.parent.glob("*/kubelet.pid"))
    tool("devcluster", "up")
    tool("devcluster", "podman-up")
    tool("images", "load", "busybox")
    start_pod(instance)
    assert kubectl(instance, "exec", "probe", "--", "hostname").strip() == "probe"
    kubectl(instance, "logs", "probe")
    run = ["run", "-d", "-p", "127.0.0.1::80", "orchard.local/busybox:dev", "sleep", "1000"]
    container = tool("devcluster", "podman", *run).stdout.strip()
    during = traces()
    # Its mounts are in a namespace of their own, so there are none to be seen here at any time.
    assert {kind for kind, found in during.items() if not found} == {"mounts"}
    tool("devcluster", "down")  # with the pod and the container still running
    after = traces()
    assert not any(after.values()), after
    gone = {int(process.split()[0]) for process in during["processes"]}
    assert not {pid for pid in gone if start_time(pid) and f"{pid} {start_time(pid)}" in during["processes"]}
    assert not during["network namespaces"] & set(output("lsns", "-nt", "net", "-o", "NS").split())
    assert not during["links"] & set(os.listdir("/sys/class/net"))
    assert not [path for path in Path("/sys/fs/cgroup").rglob(f"*{container}*")]
    assert {path for path in FIXED_FOLDERS if Path(path).exists()} == folders
    if not others and not list(instance.parent.parent.glob("*/kubelet.pid")):
        assert settings() == before


def test_up_after_parts_were_killed_starts_them_again_and_pods_go_on(instance: Path) -> None:
    tool("devcluster", "up")
    tool("images", "load", "busybox")
    start_pod(instance)
    kubectl(instance, "exec", "probe", "--", "touch", "/scratch/kept")
    for part in ("kube-apiserver", "kubelet"):
        tool("devcluster", "stop", part)
    tool("devcluster", "up")
    assert kubectl(instance, "exec", "probe", "--", "ls", "/scratch").strip() == "kept"


def test_up_makes_all_anew_when_the_node_is_lost(instance: Path) -> None:
    tool("devcluster", "up")
    kubectl(instance, "create", "namespace", "old")
    tool("devcluster", "stop", "namespace")
    tool("devcluster", "up")
    assert "old" not in kubectl(instance, "get", "namespaces").split()


def test_a_second_up_changes_nothing_and_it_stays_up_until_the_last_holder_lets_go(instance: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as other:
        tool("devcluster", "up", f"--for={os.getpid()}")
        first = json.loads(tool("devcluster", "status").stdout)["pids"]
        tool("devcluster", "up", f"--for={other.pid}")
        assert json.loads(tool("devcluster", "status").stdout)["pids"] == first
        tool("devcluster", "down", f"--for={os.getpid()}")
        assert tool("devcluster", "status", check=False).returncode == 0
        other.kill()
    tool("devcluster", "down", "--unused")
    assert not instance.parent.exists()
