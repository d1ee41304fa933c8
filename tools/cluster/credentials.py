"""Keys, certificates, tokens and kubeconfigs of one instance: made anew at every start, mode 0600."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from cluster.paths import Instance
from cluster.processes import run


def write_credentials(instance: Instance) -> None:
    """A certificate authority, what it signs, the service accounts' key, tokens and kubeconfigs."""
    folder = instance.root / "credentials"
    folder.mkdir(mode=0o700)
    _authority(folder)
    names = f"IP:{instance.gateway},IP:{instance.service_address},DNS:kubernetes.default.svc,DNS:localhost"
    _signed(folder, "apiserver", "/CN=kube-apiserver", names)
    _signed(folder, "kubelet", f"/O=system:nodes/CN=system:node:{instance.node}", f"IP:{instance.gateway}")
    _signed(
        folder, "kubelet-client", "/O=system:masters/CN=kube-apiserver-kubelet-client", "DNS:kube-apiserver"
    )
    _key(folder / "service-accounts.key")
    users = {
        "admin": ("admin", "system:masters"),
        "kubelet": (f"system:node:{instance.node}", "system:nodes"),
        "controller-manager": ("system:kube-controller-manager", ""),
        "scheduler": ("system:kube-scheduler", ""),
    }
    lines = []
    for name, (user, group) in users.items():
        token = secrets.token_hex(24)
        lines.append(f'{token},{user},{user},"{group}"\n')
        path = instance.kubeconfig if name == "admin" else folder / f"{name}.kubeconfig"
        _private(path, kubeconfig(instance, folder / "ca.crt", name, token))
    _private(folder / "tokens.csv", "".join(lines))


def kubeconfig(instance: Instance, authority: Path, user: str, token: str) -> str:
    """A kubeconfig for one user of the instance; JSON, which is YAML too."""
    certificate = run("base64", "-w0", authority)
    cluster = {"server": instance.api_server, "certificate-authority-data": certificate}
    context = {"cluster": instance.node, "user": user}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": instance.node, "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": instance.node, "context": context}],
            "current-context": instance.node,
        },
        indent=1,
    )


def _private(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as out:
        out.write(text)


def _key(path: Path) -> None:
    # Not `genpkey`: Kubernetes reads an elliptic key of its service accounts in this older form only.
    run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)


def _authority(folder: Path) -> None:
    _key(folder / "ca.key")
    command: list[str | Path] = [
        "openssl",
        "req",
        "-x509",
        "-new",
        "-key",
        folder / "ca.key",
        "-days",
        "3650",
    ]
    run(*command, "-subj", "/CN=orchard-devcluster", "-out", folder / "ca.crt")


def _signed(folder: Path, name: str, subject: str, names: str) -> None:
    _key(folder / f"{name}.key")
    request, extensions = folder / f"{name}.csr", folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n")
    run("openssl", "req", "-new", "-key", folder / f"{name}.key", "-subj", subject, "-out", request)
    signing: list[str | Path] = [
        "-CA",
        folder / "ca.crt",
        "-CAkey",
        folder / "ca.key",
        "-CAcreateserial",
        "-days",
        "3650",
    ]
    command: list[str | Path] = ["openssl", "x509", "-req", "-in", request, *signing, "-extfile", extensions]
    run(*command, "-out", folder / f"{name}.crt")
