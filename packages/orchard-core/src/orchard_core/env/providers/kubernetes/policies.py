"""The network policies of the sandboxes' namespace: nothing in but the service, nothing out but what is allowed."""

from __future__ import annotations

from typing import Any

from orchard_core.env.providers.kubernetes.api import KubernetesApi, KubernetesApiError
from orchard_core.env.providers.kubernetes.options import KubernetesOptions
from orchard_core.env.providers.kubernetes.podspec import EGRESS, MANAGED


def policy_bodies(options: KubernetesOptions) -> list[dict[str, Any]]:
    """Ingress for all sandboxes, and egress for those of network "none"."""
    clients = [{"ipBlock": {"cidr": cidr}} for cidr in options.clients]
    ingress = {
        "podSelector": {"matchLabels": {MANAGED: "true"}},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": clients, "ports": [{"protocol": "TCP", "port": options.port}]}],
    }
    closed = {
        "podSelector": {"matchLabels": {MANAGED: "true", EGRESS: "none"}},
        "policyTypes": ["Egress"],
        "egress": [],
    }
    return [_policy("orchard-sandbox-ingress", ingress), _policy("orchard-sandbox-no-egress", closed)]


async def ensure_policies(api: KubernetesApi, options: KubernetesOptions) -> None:
    """Make the policies, or make them what they should be."""
    path = f"/apis/networking.k8s.io/v1/namespaces/{options.namespace}/networkpolicies"
    for body in policy_bodies(options):
        try:
            await api.create(path, body)
        except KubernetesApiError as error:
            if error.status != 409:
                raise
            await api.patch(f"{path}/{body['metadata']['name']}", {"spec": body["spec"]})


def _policy(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": {MANAGED: "true"}},
        "spec": spec,
    }
