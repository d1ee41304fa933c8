"""A node that is simulated: a Node object, its heartbeats, and what a kubelet says about its pods.

It does for each pod what a kubelet does as seen by the API server, but runs the pod's sandboxd as a plain
process on a loopback address of its own (127.x.y.z is the pod's address) instead of in a container. Figures
measured on it are about the control plane; they say nothing about containers, images or isolation.
"""

from __future__ import annotations

import base64
import http.client
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from cluster.api import Api, ApiError, Object
from cluster.pod_status import now, pod_status

log = logging.getLogger("simnode")

SIMULATED = "orchard.dev/simulated"
"""Label and taint of such a node: only pods that ask for it and tolerate it land there."""
LEASE_EVERY_S = 10
STATUS_EVERY_S = 60
START_PATIENCE_S = 60.0
FIRST_USER = 300_000
SOURCES = Path(__file__).resolve().parent.parent.parent / "packages/orchard-core/src/orchard_core"


@dataclass
class SimulatedPod:
    """One pod as the API server described it first; `ended` is set once its process is gone."""

    uid: str
    namespace: str
    name: str
    address: str
    described: Object
    user: int
    started_at: str = field(default_factory=now)
    ended: threading.Event = field(default_factory=threading.Event)
    code: int | None = None
    deleting: bool = False
    deadline: float | None = None
    """On the monotonic clock."""
    reason: str = ""
    """Why it was ended from here."""

    @property
    def path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"


class SimulatedNode:
    """Runs until `stop`; `folder` takes the pods' folders and logs."""

    def __init__(self, api: Api, name: str, folder: Path, *, max_pods: int, network: int) -> None:
        self.api = api
        self.name = name
        self.folder = folder
        self.max_pods = max_pods
        self.network = network
        """The second number of the pods' addresses: 127.<network>.y.z."""
        self.pods: dict[str, SimulatedPod] = {}
        self.stopping = threading.Event()
        self._count = 0
        self._workers = ThreadPoolExecutor(24, "pod")
        self._zygote_lock = threading.Lock()
        self._zygote, self._zygote_process = self._start_zygote()

    def register(self) -> None:
        """Create the Node object anew, and its lease."""
        try:
            self.api.call("DELETE", f"/api/v1/nodes/{self.name}")
        except ApiError as error:
            if error.status != 404:
                raise
        labels = {SIMULATED: "true", "kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux"}
        taint = {"key": SIMULATED, "value": "true", "effect": "NoSchedule"}
        node = {"metadata": {"name": self.name, "labels": labels}, "spec": {"taints": [taint]}}
        self.api.call("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", **node})
        self._report_node()
        self._renew_lease()

    def run(self) -> None:
        """Heartbeats in a thread, and the pods' events in this one, until `stop`."""
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        threading.Thread(target=self._read_zygote, name="zygote", daemon=True).start()
        query = f"fieldSelector=spec.nodeName%3D{self.name}"
        for event in self.api.follow("/api/v1/pods", query, self.stopping):
            if event["type"] == "LISTED":
                listed = {pod["metadata"]["uid"] for pod in event["items"]}
                for uid in set(self.pods) - listed:
                    self._workers.submit(self._end, uid)
                for pod in event["items"]:
                    self._see(pod)
            elif event["type"] == "DELETED":
                self._workers.submit(self._end, event["object"]["metadata"]["uid"])
            else:
                self._see(event["object"])

    def stop(self) -> None:
        """End all sandboxes and take the pods and the node away; a node that is killed is a node that is lost."""
        self.stopping.set()
        self._zygote.close()
        self._zygote_process.kill()
        self._zygote_process.wait()
        self._workers.shutdown(wait=False, cancel_futures=True)
        paths = [f"{pod.path}?gracePeriodSeconds=0" for pod in self.pods.values()]
        with ThreadPoolExecutor(8) as removers:
            list(removers.map(self._remove, [*paths, f"/api/v1/nodes/{self.name}"]))

    def _remove(self, path: str) -> None:
        try:
            self.api.call("DELETE", path)
        except (ApiError, OSError, http.client.HTTPException) as error:
            log.info("%s was not deleted: %s", path, error)

    # Pods

    def _see(self, pod: Object) -> None:
        """A pod is new or has changed."""
        meta = pod["metadata"]
        known = self.pods.get(meta["uid"])
        if "deletionTimestamp" in meta:
            if known is None:
                path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
                self._workers.submit(self._finalise, path, meta["uid"])
            elif not known.deleting:
                known.deleting = True
                self._workers.submit(self._delete, known, float(meta.get("deletionGracePeriodSeconds") or 0))
        elif known is None and pod["status"].get("phase", "Pending") in ("Pending", "Running"):
            self._count += 1
            address = f"127.{self.network}.{self._count // 250 % 250}.{self._count % 250 + 1}"
            user = FIRST_USER + self._count
            new = SimulatedPod(meta["uid"], meta["namespace"], meta["name"], address, pod, user)
            self.pods[new.uid] = new
            self._workers.submit(self._start, new)

    def _start(self, pod: SimulatedPod) -> None:
        """Start the process and report the pod as ready once it listens."""
        env = self._environment(pod)
        folder = self.folder / pod.uid
        folder.mkdir()
        port = 0
        if "ORCHARD_LISTEN" in env:
            port = int(env["ORCHARD_LISTEN"].rpartition(":")[2])
            env["ORCHARD_LISTEN"] = f"tcp:{pod.address}:{port}"
            if env.get("ORCHARD_WORKDIR") and not Path(env["ORCHARD_WORKDIR"]).is_dir():
                env["ORCHARD_WORKDIR"] = str(folder)  # there is no image that could have it
        os.chown(folder, pod.user, pod.user)
        self._tell({"start": pod.uid, "env": env, "folder": str(folder), "user": pod.user})
        give_up = time.monotonic() + START_PATIENCE_S
        while port and not _listens(pod.address, port) and not pod.ended.wait(0.01):
            if time.monotonic() > give_up:
                pod.reason = "NeverListened"
                self._tell({"signal": signal.SIGKILL, "to": pod.uid})
                return
        if not pod.ended.is_set():
            limit = pod.described["spec"].get("activeDeadlineSeconds")
            pod.deadline = time.monotonic() + float(limit) if limit is not None else None
            self._report(pod)

    def _on_exit(self, pod: SimulatedPod) -> None:
        """Its process is gone: say so, unless the pod is being deleted anyway."""
        shutil.rmtree(self.folder / pod.uid, ignore_errors=True)
        if not pod.deleting:
            self._report(pod)

    def _delete(self, pod: SimulatedPod, grace_s: float) -> None:
        """End it as a kubelet does: SIGTERM, SIGKILL after the grace, then the object goes."""
        self._tell({"signal": signal.SIGTERM, "to": pod.uid})
        if not pod.ended.wait(grace_s):
            self._tell({"signal": signal.SIGKILL, "to": pod.uid})
            pod.ended.wait(10)
        self._finalise(pod.path, pod.uid)
        self.pods.pop(pod.uid, None)

    def _finalise(self, path: str, uid: str) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        self._try("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", **options})

    def _end(self, uid: str) -> None:
        """The object is gone already, so nobody waits."""
        pod = self.pods.pop(uid, None)
        if pod is not None:
            pod.deleting = True
            self._tell({"signal": signal.SIGKILL, "to": uid})

    def _report(self, pod: SimulatedPod) -> None:
        status = pod_status(pod.described, pod.address, pod.started_at, pod.code, pod.reason)
        self._try("PATCH", f"{pod.path}/status", {"metadata": {"uid": pod.uid}, "status": status})

    def _try(self, method: str, path: str, body: Object) -> None:
        """A call about a pod, repeated while the API server is out of reach; a pod that is gone is no error."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        while not self.stopping.is_set():
            try:
                self.api.call(method, path, body, kind)
                return
            except ApiError as error:
                if error.status in (404, 409):
                    return
                log.warning("%s %s: %s", method, path, error)
            except (OSError, http.client.HTTPException) as error:
                log.warning("%s %s: %s", method, path, error)
            self.stopping.wait(0.5)

    def _environment(self, pod: SimulatedPod) -> dict[str, str]:
        """The environment of the pod's first container, with its references resolved."""
        described = pod.described
        found = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        fields = {
            "metadata.uid": pod.uid,
            "metadata.name": pod.name,
            "metadata.namespace": pod.namespace,
            "spec.nodeName": self.name,
            "status.podIP": pod.address,
            "status.hostIP": "127.0.0.1",
        }
        for entry in described["spec"]["containers"][0].get("env", []):
            source = entry.get("valueFrom", {})
            if "fieldRef" in source:
                found[entry["name"]] = fields[source["fieldRef"]["fieldPath"]]
            elif "secretKeyRef" in source:
                wanted = source["secretKeyRef"]
                secret = self.api.call("GET", f"/api/v1/namespaces/{pod.namespace}/secrets/{wanted['name']}")
                found[entry["name"]] = base64.b64decode(secret["data"][wanted["key"]]).decode()
            else:
                found[entry["name"]] = entry.get("value", "")
        return found

    # The process that forks

    def _start_zygote(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair()
        script = Path(__file__).parent / "zygote.py"
        command = [sys.executable, "-I", "-S", str(script), str(theirs.fileno()), str(SOURCES)]
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        return ours, process

    def _tell(self, order: Object) -> None:
        with self._zygote_lock:
            self._zygote.sendall(json.dumps(order).encode() + b"\n")

    def _read_zygote(self) -> None:
        for line in self._zygote.makefile("rb"):
            message = json.loads(line)
            pod = self.pods.get(message["exited"])
            if pod is not None:
                pod.code = message["code"]
                pod.ended.set()
                self._workers.submit(self._on_exit, pod)

    # The node

    def _beat(self) -> None:
        """Heartbeats, and deadlines of pods; once a second is precise enough for both."""
        beats = 0
        while not self.stopping.wait(1):
            beats += 1
            try:
                if beats % LEASE_EVERY_S == 0:
                    self._renew_lease()
                if beats % STATUS_EVERY_S == 0:
                    self._report_node()
            except (ApiError, OSError, http.client.HTTPException) as error:
                log.warning("no heartbeat: %s", error)
            for pod in list(self.pods.values()):
                if pod.deadline is not None and time.monotonic() > pod.deadline:
                    pod.deadline, pod.reason = None, "DeadlineExceeded"
                    self._tell({"signal": signal.SIGKILL, "to": pod.uid})

    def _report_node(self) -> None:
        amounts = {"cpu": "4000", "memory": "16Ti", "ephemeral-storage": "64Ti", "pods": str(self.max_pods)}
        ready = {"type": "Ready", "status": "True", "reason": "Simulated", "lastHeartbeatTime": now()}
        addresses = [
            {"type": "InternalIP", "address": "127.0.0.1"},
            {"type": "Hostname", "address": self.name},
        ]
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{**ready, "message": "a simulated node", "lastTransitionTime": now()}],
            "addresses": addresses,
            "nodeInfo": {key: "simulated" for key in NODE_INFO} | {"kubeletVersion": "v1.20.2"},
        }
        self.api.patch(f"/api/v1/nodes/{self.name}/status", {"status": status})

    def _renew_lease(self) -> None:
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": now(micro=True)}
        try:
            self.api.patch(f"{path}/{self.name}", {"spec": spec})
        except ApiError as error:
            if error.status != 404:
                raise
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.name}}
            self.api.call("POST", path, {**lease, "spec": spec})


NODE_INFO = [
    "architecture",
    "bootID",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "machineID",
    "operatingSystem",
    "osImage",
    "systemUUID",
]


def _listens(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0
