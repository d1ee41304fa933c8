"""Builds the Kubernetes binaries from Debian's source package and keeps them in the cache."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from cluster.paths import KUBERNETES_VERSION, ClusterError, cache_root

BINARIES = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet"]
SUITE = "bookworm"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def binaries_folder() -> Path:
    return cache_root() / "devcluster" / KUBERNETES_VERSION


def is_built() -> bool:
    return all((binaries_folder() / name).is_file() for name in BINARIES)


def build() -> Path:
    """The folder with all of BINARIES; builds them (minutes, all cores) unless it is there.

    Raises ClusterError when the source cannot be had or the build fails.
    """
    folder = binaries_folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{KUBERNETES_VERSION}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_built():
            # Beside the result: the rename is within one file system, and /tmp may be small.
            with tempfile.TemporaryDirectory(prefix="build-", dir=folder.parent) as scratch:
                _build_into(folder, Path(scratch))
    return folder


def _build_into(folder: Path, scratch: Path) -> None:
    tree = _source_tree(scratch)
    # Kubernetes 1.20 builds in a GOPATH; its build script makes one of its own, with this link in it.
    linked = tree / ".go/src/k8s.io/kubernetes"
    linked.parent.mkdir(parents=True)
    linked.symlink_to(tree)
    major, minor, _ = KUBERNETES_VERSION.split(".")
    settings = {
        "GOPATH": str(tree / ".go"),
        "GOCACHE": str(scratch / "go-cache"),
        "GO111MODULE": "off",
        "CGO_ENABLED": "0",
        "GOFLAGS": "",
        # It is no git checkout, so the version is told instead of asked for.
        "KUBE_GIT_VERSION": f"v{KUBERNETES_VERSION}",
        "KUBE_GIT_MAJOR": major,
        "KUBE_GIT_MINOR": minor,
        "KUBE_GIT_COMMIT": "0" * 40,
        "KUBE_GIT_TREE_STATE": "clean",
        "PWD": str(linked),
    }
    what = " ".join(f"cmd/{name}" for name in BINARIES)
    _run(["make", f"WHAT={what}"], cwd=linked, environment=settings, log=folder.parent / "build.log")
    made = tree / "_output/bin"
    if not made.is_dir():
        made = tree / "_output/local/bin/linux" / _go("env", "GOARCH")
    staged = scratch / "binaries"
    staged.mkdir()
    for name in BINARIES:
        shutil.copy2((made / name).resolve(), staged / name)
    shutil.rmtree(folder, ignore_errors=True)
    staged.rename(folder)
    (folder.parent / "build.log").unlink()


def _source_tree(scratch: Path) -> Path:
    """Kubernetes' sources, fetched and verified by apt through a sources list of its own."""
    lists = scratch / "lists"
    (lists / "partial").mkdir(parents=True)
    sources = scratch / "sources.list"
    signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    sources.write_text(f"deb-src {signed}{debian_mirror()} {SUITE} main\n")
    apt = [
        "apt-get",
        "-qq",
        *("-o", f"Dir::Etc::SourceList={sources}"),
        *("-o", "Dir::Etc::SourceParts=/dev/null"),
        *("-o", f"Dir::State::Lists={lists}"),
        *("-o", "APT::Sandbox::User=root"),
    ]
    _run([*apt, "update"], cwd=scratch)
    _run([*apt, "source", "--download-only", "kubernetes"], cwd=scratch)
    archives = list(scratch.glob(f"kubernetes_*{KUBERNETES_VERSION}.orig.tar.*"))
    if len(archives) != 1:
        raise ClusterError(f"Debian {SUITE} no longer has Kubernetes {KUBERNETES_VERSION}: {archives}")
    tree = scratch / "kubernetes"
    tree.mkdir()
    _run(["tar", "-xf", str(archives[0]), "-C", str(tree), "--strip-components=1"], cwd=scratch)
    return tree


def debian_mirror() -> str:
    """The address of a Debian archive: the machine's own, or `$ORCHARD_DEBIAN_MIRROR`."""
    named = os.environ.get("ORCHARD_DEBIAN_MIRROR")
    if named:
        return named
    question = ["apt-get", "indextargets", "--format", "$(ORIGIN) $(CODENAME) $(REPO_URI)"]
    answer = subprocess.run([*question, "Created-By: Packages"], capture_output=True, text=True, check=False)
    for line in answer.stdout.splitlines():
        origin, codename, address = line.split(" ", 2)
        if origin == "Debian" and "-" not in codename:
            return address
    raise ClusterError("apt knows no Debian archive here: set ORCHARD_DEBIAN_MIRROR to the address of one")


def _go(*arguments: str) -> str:
    return subprocess.run(["go", *arguments], capture_output=True, text=True, check=True).stdout.strip()


def _run(
    command: list[str], *, cwd: Path, environment: dict[str, str] | None = None, log: Path | None = None
) -> None:
    """Run to the end at low priority; on failure ClusterError with the last lines of its output."""
    done = subprocess.run(
        ["nice", "-n", "15", *command],
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if log is not None:
        log.write_text(done.stdout)
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-20:])
        raise ClusterError(f"{' '.join(command)} failed (exit {done.returncode}):\n{tail}")
