"""The status that a kubelet would report for a pod of a simulated node."""

from __future__ import annotations

from datetime import UTC, datetime

from cluster.api import Object


def now(*, micro: bool = False) -> str:
    """The time in the API's form, in seconds or microseconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


def pod_status(described: Object, address: str, started_at: str, code: int | None, reason: str) -> Object:
    """The status of a pod that runs (`code` None) or whose process ended with `code`.

    `reason` is set where the node ended it ("DeadlineExceeded").
    """
    running = code is None
    phase = "Running" if running else "Failed" if code or reason else "Succeeded"
    at = now()
    state: Object = {"running": {"startedAt": started_at}}
    if not running:
        why = "Error" if code else "Completed"
        state = {"terminated": {"exitCode": code, "reason": why, "startedAt": started_at, "finishedAt": at}}
    spec = described["spec"]
    uid = described["metadata"]["uid"]
    scheduled = [one for one in described["status"].get("conditions", []) if one["type"] == "PodScheduled"]
    conditions = [{"type": "Initialized", "status": "True", "lastTransitionTime": started_at}]
    for kind in ("Ready", "ContainersReady"):
        condition = {"type": kind, "status": "True" if running else "False", "lastTransitionTime": at}
        conditions.append(condition if running else {**condition, "reason": "PodCompleted"})
    status: Object = {
        "phase": phase,
        "conditions": [*conditions, *scheduled],
        "hostIP": "127.0.0.1",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": started_at,
        "initContainerStatuses": [
            _container(one, uid, False, {"terminated": {"exitCode": 0, "reason": "Completed"}}, ready=True)
            for one in spec.get("initContainers", [])
        ],
        "containerStatuses": [
            _container(one, uid, running, state, ready=running) for one in spec["containers"]
        ],
    }
    if reason:
        status |= {"reason": reason, "message": f"ended by the simulated node: {reason}"}
    return status


def _container(container: Object, uid: str, started: bool, state: Object, *, ready: bool) -> Object:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": f"simulated://{container['image']}",
        "containerID": f"simulated://{uid}/{container['name']}",
        "ready": ready,
        "started": started,
        "restartCount": 0,
        "state": state,
        "lastState": {},
    }
