"""etcd, API server, controller manager and scheduler of one instance."""

from __future__ import annotations

import json
import random
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path

from cluster.paths import API_PORT, ClusterError, Instance
from cluster.processes import Daemon

COMPONENTS = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]


def start_control_plane(instance: Instance, binaries: Path) -> None:
    """Start all four and wait until the API server is ready (3 s). The bridge must be there already."""
    etcd_port, peer_port, manager_port, scheduler_port = free_ports(4)
    etcd_address = f"http://127.0.0.1:{etcd_port}"
    _start_etcd(instance, etcd_address, f"http://127.0.0.1:{peer_port}")
    _start_api_server(instance, binaries, etcd_address)
    credentials = instance.root / "credentials"
    busy_clients = ["--kube-api-qps=300", "--kube-api-burst=500", "--leader-elect=false", "--port=0"]
    Daemon("kube-controller-manager", instance.root).start(
        [
            str(binaries / "kube-controller-manager"),
            f"--kubeconfig={credentials}/controller-manager.kubeconfig",
            f"--service-account-private-key-file={credentials}/service-accounts.key",
            f"--root-ca-file={credentials}/ca.crt",
            "--use-service-account-credentials=true",
            "--bind-address=127.0.0.1",
            f"--secure-port={manager_port}",
            f"--cert-dir={instance.root}/controller-manager",
            # A lost node is noticed in half the usual time, so that tests need not wait.
            "--node-monitor-period=2s",
            "--node-monitor-grace-period=20s",
            *busy_clients,
        ]
    )
    Daemon("kube-scheduler", instance.root).start(
        [
            str(binaries / "kube-scheduler"),
            f"--kubeconfig={credentials}/scheduler.kubeconfig",
            f"--authentication-kubeconfig={credentials}/scheduler.kubeconfig",
            f"--authorization-kubeconfig={credentials}/scheduler.kubeconfig",
            "--bind-address=127.0.0.1",
            f"--secure-port={scheduler_port}",
            f"--cert-dir={instance.root}/scheduler",
            *busy_clients,
        ]
    )


def _start_etcd(instance: Instance, address: str, peer_address: str) -> None:
    daemon = Daemon("etcd", instance.root)
    daemon.start(
        [
            "etcd",
            f"--data-dir={instance.root}/etcd",
            f"--listen-client-urls={address}",
            f"--advertise-client-urls={address}",
            f"--listen-peer-urls={peer_address}",
            f"--initial-advertise-peer-urls={peer_address}",
            f"--initial-cluster=default={peer_address}",
            "--unsafe-no-fsync",  # what a power cut would lose is thrown away at `down` anyway
            "--log-level=warn",
        ]
    )
    daemon.until(lambda: _get(f"{address}/health") is not None, "answering", seconds=20)


def _start_api_server(instance: Instance, binaries: Path, etcd_address: str) -> None:
    daemon = Daemon("kube-apiserver", instance.root)
    credentials = instance.root / "credentials"
    daemon.start(
        [
            str(binaries / "kube-apiserver"),
            f"--etcd-servers={etcd_address}",
            f"--bind-address={instance.gateway}",
            f"--advertise-address={instance.gateway}",
            f"--secure-port={API_PORT}",
            f"--service-cluster-ip-range={instance.service_subnet}",
            f"--tls-cert-file={credentials}/apiserver.crt",
            f"--tls-private-key-file={credentials}/apiserver.key",
            f"--token-auth-file={credentials}/tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--anonymous-auth=true",  # /readyz and the like only; RBAC gives anonymous users nothing else
            "--allow-privileged=true",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={credentials}/service-accounts.key",
            f"--service-account-key-file={credentials}/service-accounts.key",
            f"--kubelet-certificate-authority={credentials}/ca.crt",
            f"--kubelet-client-certificate={credentials}/kubelet-client.crt",
            f"--kubelet-client-key={credentials}/kubelet-client.key",
            "--kubelet-preferred-address-types=InternalIP",
            "--event-ttl=15m",
        ]
    )
    daemon.until(lambda: api_server_is_ready(instance), "becoming ready", seconds=90)


def api_server_is_ready(instance: Instance) -> bool:
    """Whether it answers, and says that it is ready."""
    return read_api(instance, "/readyz") is not None


def node_is_ready(instance: Instance) -> bool:
    """Whether the node is Ready and pods can be created in the namespace `default`."""
    node = read_api(instance, f"/api/v1/nodes/{instance.node}")
    account = read_api(instance, "/api/v1/namespaces/default/serviceaccounts/default")
    if node is None or account is None:
        return False
    conditions = json.loads(node)["status"].get("conditions", [])
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


def read_api(instance: Instance, path: str) -> str | None:
    """What the API server answers to an administrator's GET; None when there is no (good) answer."""
    try:
        config = json.loads(instance.kubeconfig.read_text())
    except FileNotFoundError:
        return None
    context = ssl.create_default_context(cafile=str(instance.root / "credentials/ca.crt"))
    return _get(f"{instance.api_server}{path}", context, config["users"][0]["user"]["token"])


def free_ports(count: int) -> list[int]:
    """TCP ports of loopback that are free now, outside the range that outgoing connections draw from."""
    found: list[int] = []
    for _ in range(1000):
        port = random.randrange(20000, 30000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
        if len(found) == count:
            return found
    raise ClusterError("no free TCP port on loopback between 20000 and 30000")


def _get(address: str, context: ssl.SSLContext | None = None, token: str = "") -> str | None:
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"} if token else {})
    # No proxy: these addresses are this machine's own.
    handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)]
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=5) as reply:
            return str(reply.read().decode())
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return None
