"""What the Kubernetes provider can be told."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from orchard_core.env.errors import ProviderUnavailableError
from orchard_core.errors import UsageError
from orchard_core.sandboxd import auth

MASTER_KEY_VARIABLE = "ORCHARD_MASTER_KEY"


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """Options of the provider.

    - `kubeconfig`, `context`: which cluster (default: KUBECONFIG, else the pod's own service account).
    - `namespace` of the pods; `image` for specs that name none ("host").
    - `sandboxd_image` brings sandboxd; `runtime` is how: "init" (an init container copies it, any cluster),
      "image-volume" (Kubernetes 1.33 and later), or a folder of every node that holds it ("/var/lib/...").
    - `master_key_file`: 32 bytes in hex, shared by all replicas, from which the sandboxes' keys are derived
      (default: the variable ORCHARD_MASTER_KEY, else one of this process alone, whose sandboxes no other
      can reach).
    - `cpu`, `memory_bytes`, `ephemeral_bytes`: requests and limits where the spec has none.
    - `max_ttl_s`: no pod lives longer, whatever its lease.
    - `unschedulable_s`: how long to hope for a node.
    - `egress_lock`: closes a pod's own network namespace ("auto": where the cluster turns out not to
      enforce its policies). `egress_check: false` takes its word ("auto" is then "never") unasked.
    - `clients`: CIDRs from which the service reaches the pods, for the ingress policy.
    """

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str = "default"
    image: str | None = None
    sandboxd_image: str = "orchard.local/sandboxd:dev"
    runtime: str = "init"
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    pull_secrets: list[str] = field(default_factory=list)
    master_key_file: str | None = None
    port: int = 7070
    cpu: float | None = None
    memory_bytes: int | None = None
    ephemeral_bytes: int | None = None
    max_ttl_s: float = 86400.0
    start_timeout_s: float = 600.0
    unschedulable_s: float = 10.0
    create_concurrency: int = 32
    runtime_class: str | None = None
    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: list[dict[str, Any]] = field(default_factory=list)
    priority_class: str | None = None
    run_as_non_root: bool = False
    capabilities: list[str] = field(default_factory=list)
    egress_lock: Literal["auto", "always", "never"] = "auto"
    egress_check: bool = True
    network_policies: bool = True
    clients: list[str] = field(default_factory=lambda: ["0.0.0.0/0"])

    def master_key(self) -> bytes:
        """The key's 32 bytes. Raises UsageError for what is no such key."""
        text: str | None = os.environ.get(MASTER_KEY_VARIABLE)
        if self.master_key_file is not None:
            try:
                text = Path(self.master_key_file).read_text().strip()
            except OSError as error:
                raise ProviderUnavailableError(
                    f"the master key {self.master_key_file} can't be read: {error.strerror}"
                ) from error
        if not text:
            return secrets.token_bytes(auth.KEY_BYTES)
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) != auth.KEY_BYTES:
            raise UsageError(f"the master key must be {auth.KEY_BYTES} bytes in hex (openssl rand -hex 32)")
        return key


def quantity(count: float) -> str:
    """A Kubernetes quantity: whole numbers as they are, others in thousandths."""
    return str(int(count)) if count == int(count) else f"{round(count * 1000)}m"


Json = Mapping[str, Any]
"""An object of the Kubernetes API, as it is on the wire."""
