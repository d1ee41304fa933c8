"""The pod of a sandbox, as a plain object of the API."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from orchard_core.env.providers.kubernetes.options import KubernetesOptions, quantity
from orchard_core.env.runtime import runtime_argv
from orchard_core.env.spec import SandboxSpec
from orchard_core.errors import UsageError
from orchard_core.sandboxd import wire

PREFIX = "orchard.dev"
MANAGED = f"{PREFIX}/managed"
SPEC_HASH = f"{PREFIX}/spec-hash"
EGRESS = f"{PREFIX}/egress"
SPEC = f"{PREFIX}/spec"
NONCE = f"{PREFIX}/key-nonce"
LABELS = f"{PREFIX}/labels"

ROOT = "/.orchard"
_RUNTIME_VOLUME = "orchard-runtime"
_DEFAULT_PIDS = 4096
# Where the sandboxd image holds the runtime, and where its init container shows the shared volume.
_IN_IMAGE = "/orchard-runtime"
_COPY_TARGET = "/target"


def spec_json(spec: SandboxSpec) -> str:
    """The spec in one canonical form."""
    return json.dumps(asdict(spec), sort_keys=True, separators=(",", ":"))


def spec_hash(spec: SandboxSpec) -> str:
    return hashlib.sha256(spec_json(spec).encode()).hexdigest()[:32]


def spec_of(pod: Mapping[str, Any]) -> SandboxSpec:
    """The spec that a pod was made for."""
    fields = json.loads(pod["metadata"]["annotations"][SPEC])
    return SandboxSpec(**{**fields, "mounts": ()})


def check_spec(spec: SandboxSpec) -> None:
    """Raise UsageError for what a pod can't be."""
    if spec.mounts:
        raise UsageError(
            "the kubernetes provider can't show folders of this machine in a pod (mounts); upload them"
        )
    for name in ("cpu", "memory_bytes", "disk_bytes", "pids", "ttl_s", "idle_s"):
        value = getattr(spec, name)
        if value is not None and value <= 0:
            raise UsageError(f"{name} must be positive, not {value}")


def pod_body(
    name: str,
    spec: SandboxSpec,
    image: str,
    options: KubernetesOptions,
    *,
    key: bytes,
    nonce: str,
    lock: bool = False,
) -> dict[str, Any]:
    """The pod called `name`. `lock` closes its network namespace before its workload begins."""
    labels = {MANAGED: "true", SPEC_HASH: spec_hash(spec), EGRESS: spec.network}
    annotations = {SPEC: spec_json(spec), NONCE: nonce, LABELS: json.dumps(dict(spec.labels))}
    volume, init = _runtime(options, lock)
    body: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "activeDeadlineSeconds": math.ceil(max(options.max_ttl_s, spec.ttl_s)),
        "hostname": name[:63],
        "securityContext": {
            "seccompProfile": {"type": "RuntimeDefault"},
            **({"runAsNonRoot": True} if options.run_as_non_root else {}),
        },
        "volumes": [{"name": _RUNTIME_VOLUME, **volume}],
        "initContainers": init,
        "containers": [_container(name, spec, image, options, key)],
    }
    if spec.network == "none":
        # Names lead nowhere; asking for them should fail at once and not after a time-out.
        body["dnsPolicy"] = "None"
        body["dnsConfig"] = {"nameservers": ["127.0.0.1"], "options": [{"name": "attempts", "value": "1"}]}
    if spec.network == "host":
        raise UsageError('a pod does not get the network of its node; use network "none" or "cluster"')
    for field, value in (
        ("nodeSelector", options.node_selector),
        ("tolerations", options.tolerations),
        ("runtimeClassName", options.runtime_class),
        ("priorityClassName", options.priority_class),
        ("imagePullSecrets", [{"name": secret} for secret in options.pull_secrets]),
    ):
        if value:
            body[field] = value
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": body,
    }


def _container(
    name: str, spec: SandboxSpec, image: str, options: KubernetesOptions, key: bytes
) -> dict[str, Any]:
    settings = {
        "ORCHARD_SANDBOX_ID": name,
        "ORCHARD_SANDBOX_KEY": key.hex(),
        "ORCHARD_LISTEN": f"tcp:0.0.0.0:{options.port}",
        "ORCHARD_TTL_S": str(spec.ttl_s),
        "ORCHARD_IDLE_S": "" if spec.idle_s is None else str(spec.idle_s),
        "ORCHARD_WORKDIR": spec.workdir,
        "ORCHARD_PIDS": str(_DEFAULT_PIDS if spec.pids is None else spec.pids),
        "ORCHARD_ENV": wire.pack(dict(spec.env)).hex(),
    }
    identity = {
        "name": "ORCHARD_SANDBOX_IDENTITY",
        "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}},
    }
    return {
        "name": "sandbox",
        "image": image,
        "imagePullPolicy": options.pull_policy,
        "command": runtime_argv(ROOT + _IN_IMAGE if options.runtime == "image-volume" else ROOT),
        "env": [*({"name": k, "value": v} for k, v in settings.items()), identity],
        "ports": [{"name": "sandboxd", "containerPort": options.port}],
        "resources": _resources(spec, options),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {
                "drop": ["ALL"],
                **({"add": options.capabilities} if options.capabilities else {}),
            },
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": _RUNTIME_VOLUME, "mountPath": ROOT, "readOnly": True}],
    }


def _runtime(options: KubernetesOptions, lock: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The volume that holds sandboxd's runtime, and the init container that fills it or closes the network."""
    port = str(options.port)
    if options.runtime == "init":
        command = [*runtime_argv(_IN_IMAGE, "install"), _IN_IMAGE, _COPY_TARGET, *([port] if lock else [])]
        return {"emptyDir": {}}, [_init_container(options, command, _COPY_TARGET, lock)]
    if options.runtime == "image-volume":
        volume: dict[str, Any] = {
            "image": {"reference": options.sandboxd_image, "pullPolicy": options.pull_policy}
        }
        root = ROOT + _IN_IMAGE
    elif options.runtime.startswith("/"):
        volume, root = {"hostPath": {"path": options.runtime, "type": "Directory"}}, ROOT
    else:
        raise UsageError(
            f'the option runtime is "init", "image-volume" or a folder of the nodes, not {options.runtime!r}'
        )
    return volume, [_init_container(options, [*runtime_argv(root, "lock"), port], ROOT, lock)] if lock else []


def _init_container(options: KubernetesOptions, command: list[str], mount: str, lock: bool) -> dict[str, Any]:
    """Shares the pod's network namespace with the workload, which unlike this may not change it."""
    privileges = {"runAsUser": 0, "runAsNonRoot": False} if lock else {}
    return {
        "name": "runtime",
        "image": options.sandboxd_image,
        "imagePullPolicy": options.pull_policy,
        "command": command,
        "resources": _small(),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], **({"add": ["NET_ADMIN"]} if lock else {})},
            **privileges,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": _RUNTIME_VOLUME, "mountPath": mount, "readOnly": mount == ROOT}],
    }


def _resources(spec: SandboxSpec, options: KubernetesOptions) -> dict[str, Any]:
    wanted = {
        "cpu": spec.cpu if spec.cpu is not None else options.cpu,
        "memory": spec.memory_bytes if spec.memory_bytes is not None else options.memory_bytes,
        "ephemeral-storage": spec.disk_bytes if spec.disk_bytes is not None else options.ephemeral_bytes,
    }
    limits = {name: quantity(value) for name, value in wanted.items() if value is not None}
    return {"requests": limits, "limits": limits}


def _small() -> dict[str, Any]:
    return {"requests": {"cpu": "1m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}}
