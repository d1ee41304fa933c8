"""What a pod's status says of its sandbox, in one sentence."""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["pending", "ready", "failed", "gone"]

# Of these a pod does not recover, whatever one waits.
_HOPELESS = frozenset(
    {
        "CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull", "ImageInspectError",
        "InvalidImageName", "RunContainerError",
    }
)  # fmt: skip
_PULLING = frozenset({"ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"})
_PULL_IS_HOPELESS = re.compile(
    r"not found|manifest unknown|denied|unauthorized|invalid reference|no such image|does not exist"
    r"|no such host|connection refused",
    re.IGNORECASE,
)
_EXPIRED = frozenset({"DeadlineExceeded"})


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`status`, why (a sentence without the subject "the sandbox"), and whether the lease ended it."""

    status: Status
    why: str = ""
    expired: bool = False


def diagnose(pod: Mapping[str, Any], unschedulable_s: float, now: float) -> Diagnosis:
    """How a pod stands. `now` in Unix seconds by the API server's clock."""
    status = pod.get("status", {})
    phase = status.get("phase", "Pending")
    if phase == "Failed":
        return _failed(pod)
    if phase == "Succeeded":
        return Diagnosis("gone", "sandboxd ended: its lease was over (ttl_s, idle_s)", expired=True)
    if "deletionTimestamp" in pod["metadata"]:
        return Diagnosis("gone", "its pod is being deleted")
    if phase == "Unknown" or status.get("reason") == "NodeLost":
        return Diagnosis("failed", f"its node {_node(pod)} is lost")
    if phase == "Running":
        return Diagnosis("ready")
    return _waiting(pod, unschedulable_s, now)


def _failed(pod: Mapping[str, Any]) -> Diagnosis:
    status = pod["status"]
    reason, message = status.get("reason"), status.get("message", "")
    if reason in _EXPIRED:
        return Diagnosis("gone", "it reached the longest life of a pod (max_ttl_s)", expired=True)
    if reason:
        return Diagnosis("failed", f"its pod failed: {reason}: {message}".rstrip(": "))
    for container, state in _states(pod, "terminated"):
        if state.get("reason") == "OOMKilled":
            return Diagnosis("failed", "it ran out of memory (raise memory_bytes)")
        if state.get("exitCode"):
            said = (state.get("message", "").strip().splitlines() or [""])[-1]
            what = "sandboxd could not be brought into it" if container == "runtime" else "sandboxd ended"
            return Diagnosis(
                "failed", f"{what} with status {state['exitCode']}" + (f": {said}" if said else "")
            )
    return Diagnosis("failed", "its pod failed")


def _waiting(pod: Mapping[str, Any], unschedulable_s: float, now: float) -> Diagnosis:
    for _container, state in _states(pod, "waiting"):
        reason, message = state.get("reason", ""), state.get("message", "")
        if reason in _HOPELESS or (reason in _PULLING and _PULL_IS_HOPELESS.search(message)):
            return Diagnosis("failed", f"its container can't start: {reason}: {message}")
        if reason == "ImagePullBackOff":
            return Diagnosis("failed", f"its image can't be pulled: {message}")
    for _container, state in _states(pod, "terminated"):
        if state.get("exitCode"):
            return Diagnosis(
                "failed", f"its container ended with status {state['exitCode']}: {state.get('reason')}"
            )
    for condition in pod.get("status", {}).get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            waited = now - seconds_of(
                condition.get("lastTransitionTime") or pod["metadata"]["creationTimestamp"]
            )
            why = f"no node can take it: {condition.get('message', 'unschedulable')}"
            return Diagnosis("failed" if waited >= unschedulable_s else "pending", why)
    return Diagnosis("pending", "its pod is starting")


def _states(pod: Mapping[str, Any], kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    status = pod.get("status", {})
    for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        state = container.get("state", {}).get(kind)
        if state is not None:
            yield container["name"], state


def _node(pod: Mapping[str, Any]) -> str:
    return str(pod.get("spec", {}).get("nodeName", "?"))


def seconds_of(timestamp: str) -> float:
    """An API timestamp as Unix seconds."""
    return float(calendar.timegm(time.strptime(timestamp[:19], "%Y-%m-%dT%H:%M:%S")))
