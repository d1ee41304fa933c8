"""The images that tests need, built offline and kept in the cache under a hash of what went into them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cluster.build import debian_mirror
from cluster.oci import ImageConfig, write_archive, write_layer
from cluster.paths import ClusterError, cache_root
from cluster.processes import run

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BASE_PACKAGES = ["ca-certificates", "git", "procps", "python3"]
BASE_SUITE = "bookworm"
KEPT = 6
"""Archives of one image that stay in the cache."""
ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Image:
    """One image: its name, what it says about itself, and how its only layer is made.

    `inputs` is hashed into the archive's name, so that a changed recipe is a new archive.
    """

    name: str
    config: ImageConfig
    inputs: Callable[[], str]
    make_layer: Callable[[Path, Path], None]
    """(layer, scratch): write the layer, a tar file, using an empty scratch folder."""

    @property
    def short(self) -> str:
        """Its name as part of a file's name."""
        return self.name.rpartition("/")[2].replace(":", "-")

    def archive(self) -> Path:
        """The image as an archive; built unless it is in the cache."""
        recipe = f"{self.name} {self.config} {self.inputs()}"
        folder = cache_root() / "images"
        target = folder / f"{self.short}-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.tar"
        if target.exists():
            return target
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{self.short}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                self._build(target)
        return target

    def _build(self, target: Path) -> None:
        folder = target.parent
        with tempfile.TemporaryDirectory(prefix="build-", dir=folder) as scratch:
            tree = Path(scratch) / "tree"
            tree.mkdir()
            layer = Path(scratch) / "layer.tar"
            self.make_layer(layer, tree)
            write_archive(target, self.name, layer, self.config)
        # Other checkouts on this machine may want the older ones.
        built = sorted(folder.glob(f"{self.short}-*.tar"), key=lambda path: path.stat().st_mtime)
        for old in built[:-KEPT]:
            old.unlink(missing_ok=True)


def _busybox() -> Path:
    path = shutil.which("busybox")
    if path is None:
        raise ClusterError("busybox is missing; run `tools/bootstrap cluster`")
    return Path(path).resolve()


def _busybox_hash() -> str:
    return hashlib.sha256(_busybox().read_bytes()).hexdigest()


def _pause_layer(layer: Path, tree: Path) -> None:
    shutil.copy(_busybox(), tree / "busybox")
    write_layer(layer, tree)


def _busybox_layer(layer: Path, tree: Path) -> None:
    """No glibc, no Python, no bash; a user of its own whose folder is the working folder."""
    for folder in ("bin", "etc", "srv", "root"):
        (tree / folder).mkdir()
    (tree / "tmp").mkdir()
    (tree / "tmp").chmod(0o1777)
    shutil.copy(_busybox(), tree / "bin/busybox")
    for applet in run(_busybox(), "--list").split():
        if applet != "busybox":
            (tree / "bin" / applet).symlink_to("busybox")
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nworker:x:1234:1234::/srv:/bin/sh\n")
    (tree / "etc/group").write_text("root:x:0:\nworker:x:1234:\n")
    write_layer(layer, tree, owner=lambda name: 1234 if name.startswith("srv") else 0)


def _base_layer(layer: Path, tree: Path) -> None:
    """A small Debian with Python and git: what most task images look like."""
    wanted = ["--variant=minbase", f"--include={','.join(BASE_PACKAGES)}"]
    # debootstrap asks the index for nothing but packages, so it needs the key ring of Debian alone.
    run("nice", "-n", "10", "debootstrap", *wanted, BASE_SUITE, tree, debian_mirror())
    for folder in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale"):
        shutil.rmtree(tree / folder, ignore_errors=True)
        (tree / folder).mkdir(parents=True)
    _add_agent(tree)
    fixed = ["--numeric-owner", "--sort=name", "--mtime=@0", "--format=pax"]
    fixed.append("--pax-option=delete=atime,delete=ctime")
    left_out = ["--exclude=./dev/*", "--exclude=./proc/*", "--exclude=./sys/*", "--exclude=./var/log/*"]
    run("tar", *fixed, *left_out, "-C", tree, "-cf", layer, ".")


def _add_agent(tree: Path) -> None:
    """The user that the image runs as, with a home and a workspace of its own, as task images have."""
    with open(tree / "etc/passwd", "a") as passwd, open(tree / "etc/group", "a") as group:
        passwd.write("agent:x:1000:1000:agent:/home/agent:/bin/bash\n")
        group.write("agent:x:1000:\n")
    for folder in ("home/agent", "workspace"):
        (tree / folder).mkdir(parents=True)
        os.chown(tree / folder, 1000, 1000)


def _python(code: str, *arguments: str) -> str:
    """Run some lines where orchard_core is installed, with the interpreter of the workspace; their output."""
    python = ROOT / ".venv/bin/python"
    if not python.exists():
        raise ClusterError("the workspace has no .venv yet; run tools/sync")
    return run(python, "-c", code, *arguments)


def _sandboxd_inputs() -> str:
    """A hash of sandboxd's sources, of the builder, and of the interpreter that is copied."""
    package = ROOT / "packages/orchard-core/src/orchard_core"
    digest = hashlib.sha256(_python(_INTERPRETER).encode())
    builders = [package / "env/runtime.py", package / "env/bundle.py"]
    for path in [*sorted((package / "sandboxd").glob("*.py")), *builders]:
        digest.update(path.read_bytes())
    return digest.hexdigest() + _busybox_hash()


def _sandboxd_layer(layer: Path, tree: Path) -> None:
    """/orchard-runtime, and /bin/cp for the init container that copies it into the pod."""
    _python(_BUILD_RUNTIME, str(tree / "orchard-runtime"))
    (tree / "bin").mkdir()
    shutil.copy(_busybox(), tree / "bin/cp")  # busybox is what its name says
    (tree / "tmp").mkdir()
    write_layer(layer, tree)


_INTERPRETER = """
import subprocess
from orchard_core.env.bundle import sandbox_python
print(subprocess.run([sandbox_python()[0], "-VV"], capture_output=True, text=True, check=True).stdout)
"""
_BUILD_RUNTIME = """
import sys
from pathlib import Path
from orchard_core.env.runtime import build_runtime
build_runtime(Path(sys.argv[1]))
"""

PAUSE = Image(
    "orchard.local/pause:dev",
    ImageConfig(entrypoint=["/busybox", "sleep", "100000000"]),
    _busybox_hash,
    _pause_layer,
)
BUSYBOX = Image(
    "orchard.local/busybox:dev",
    ImageConfig(
        command=["sh"],
        environment={"PATH": "/bin", "GREETING": "hello"},
        workdir="/srv",
        user="1234",
    ),
    _busybox_hash,
    _busybox_layer,
)
BASE = Image(
    "orchard.local/base:dev",
    ImageConfig(
        command=["bash"],
        environment={"PATH": PATH, "HOME": "/home/agent"},
        workdir="/workspace",
        user="1000",
    ),
    lambda: f"{BASE_SUITE} {BASE_PACKAGES} with the user agent",
    _base_layer,
)
SANDBOXD = Image(
    "orchard.local/sandboxd:dev",
    ImageConfig(entrypoint=["/bin/cp", "-a", "/orchard-runtime/.", "/target/"]),
    _sandboxd_inputs,
    _sandboxd_layer,
)
IMAGES = {"pause": PAUSE, "sandboxd": SANDBOXD, "busybox": BUSYBOX, "base": BASE}
