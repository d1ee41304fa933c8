"""Writes container images as archives that Docker, Podman and containerd all load; no engine is needed."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class ImageConfig:
    """What an image says about itself; the same words as in a Dockerfile."""

    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    workdir: str = ""
    user: str = ""

    def as_oci(self) -> dict[str, object]:
        return {
            "Entrypoint": self.entrypoint or None,
            "Cmd": self.command or None,
            "Env": [f"{name}={value}" for name, value in self.environment.items()],
            "WorkingDir": self.workdir,
            "User": self.user,
        }


def write_archive(target: Path, name: str, layer: Path, config: ImageConfig) -> None:
    """Write the image `name` ("host/path:tag") of one uncompressed layer, a tar file, to `target`.

    The archive is an OCI layout with Docker's manifest.json beside it. The same input gives the same bytes.
    """
    digest = _sha256(layer)
    architecture = ARCHITECTURES[platform.machine()]
    image = {
        "architecture": architecture,
        "os": "linux",
        "config": config.as_oci(),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "orchard tools/images"}],
    }
    image_blob = json.dumps(image).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": _descriptor("application/vnd.oci.image.config.v1+json", image_blob),
        "layers": [
            {
                "mediaType": "application/vnd.oci.image.layer.v1.tar",
                "digest": f"sha256:{digest}",
                "size": layer.stat().st_size,
            }
        ],
    }
    manifest_blob = json.dumps(manifest).encode()
    listed = {
        **_descriptor("application/vnd.oci.image.manifest.v1+json", manifest_blob),
        "platform": {"architecture": architecture, "os": "linux"},
        "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name},
    }
    layer_path, config_path = f"blobs/sha256/{digest}", _blob_path(image_blob)
    docker = [{"Config": config_path, "RepoTags": [name], "Layers": [layer_path]}]
    staged = target.with_suffix(".partial")
    with tarfile.open(staged, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        _add(archive, "index.json", json.dumps({"schemaVersion": 2, "manifests": [listed]}).encode())
        _add(archive, "manifest.json", json.dumps(docker).encode())
        _add(archive, config_path, image_blob)
        _add(archive, _blob_path(manifest_blob), manifest_blob)
        header = tarfile.TarInfo(layer_path)
        header.size = layer.stat().st_size
        with layer.open("rb") as content:
            archive.addfile(header, content)
    staged.rename(target)


def write_layer(target: Path, tree: Path, *, owner: Callable[[str], int] = lambda name: 0) -> None:
    """Pack a folder as a layer: sorted, without times, and owned by root (or by `owner(path)`)."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime = 0
        entry.uid = entry.gid = owner(entry.name)
        entry.uname = entry.gname = ""
        return entry

    with tarfile.open(target, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(tree.rglob("*")):
            archive.add(path, arcname=str(path.relative_to(tree)), recursive=False, filter=plain)


def _descriptor(media_type: str, blob: bytes) -> dict[str, object]:
    digest = hashlib.sha256(blob).hexdigest()
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(blob)}


def _blob_path(blob: bytes) -> str:
    return f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}"


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    header = tarfile.TarInfo(name)
    header.size = len(content)
    archive.addfile(header, io.BytesIO(content))


def _sha256(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
