"""What a sandbox looks like from inside, as arguments of bwrap."""

from __future__ import annotations

import hashlib
import os
import posixpath
import tempfile
from dataclasses import dataclass
from pathlib import Path

from orchard_core.env.bundle import cache_folder
from orchard_core.env.errors import SandboxStartError
from orchard_core.env.spec import SandboxSpec
from orchard_core.errors import UsageError

INNER_ID = 1000
# "nobody": owns no file of the host. Used as the workload's host id when started by root.
OUTER_ID = 65534
HOME = "/home/agent"
BUNDLE = "/run/orchard/sandboxd.pyz"
DEFAULT_DISK = 2 << 30
DEFAULT_PIDS = 4096
BASE_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": HOME,
    "USER": "agent",
    "LOGNAME": "agent",
    "SHELL": "/bin/sh",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}

# Of the host's /etc only what programs need to run and what holds no secret.
_ETC_SHOWN = (
    "alternatives", "ca-certificates", "debian_version", "fonts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "localtime", "magic", "magic.mime", "mime.types", "os-release", "perl", "protocols", "python3",
    "services", "shells", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone",
)  # fmt: skip
_ETC_MADE = {
    "passwd": (
        "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n"
        f"agent:x:{INNER_ID}:{INNER_ID}:agent:{HOME}:/bin/sh\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    "group": f"root:x:0:\nagent:x:{INNER_ID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


def check_spec(spec: SandboxSpec) -> None:
    """Raise UsageError for what this provider can't give."""
    if spec.image != "host":
        raise UsageError(f'the bubblewrap provider has only the image "host", not {spec.image!r}')
    for name in ("memory_bytes", "disk_bytes", "pids", "ttl_s"):
        value = getattr(spec, name)
        if value is not None and value <= 0:
            raise UsageError(f"{name} must be positive, not {value}")
    for path in (spec.workdir, *(mount.target for mount in spec.mounts)):
        if not path.startswith("/") or posixpath.normpath(path) != path or path == "/":
            raise UsageError(
                f"{path!r} must be an absolute path inside the sandbox, without '..' and not '/'"
            )


def etc_folder() -> Path:
    """The files of a sandbox's own /etc, written to the cache on first use."""
    digest = hashlib.sha256(repr(sorted(_ETC_MADE.items())).encode()).hexdigest()[:16]
    target = cache_folder() / f"etc-{digest}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=target.parent))
    for name, text in _ETC_MADE.items():
        (staging / name).write_text(text)
    try:
        staging.rename(target)
    except OSError:
        if not target.exists():
            raise
    return target


def isolation(sandbox_id: str, spec: SandboxSpec, as_root: bool, can_disable_userns: bool) -> list[str]:
    """Namespaces and privileges."""
    # No --die-with-parent: it kills bwrap but, in the midst of a start, not yet its child, which would wait
    # for ever. sandboxd sees the end of the client instead, and bwrap ends with sandboxd.
    args = ["--unshare-all", "--unshare-user", "--hostname", sandbox_id, "--new-session"]
    # sandboxd as process 1 can't be killed from inside, not even by `kill -9 -1`.
    args += ["--as-pid-1", "--clearenv", "--cap-drop", "ALL"]
    if spec.network == "host":
        args += ["--share-net"]
    if as_root:
        # sandboxd gives these up, by becoming another user, before it runs anything.
        for name in ("CHOWN", "SETUID", "SETGID", "SYS_RESOURCE"):
            args += ["--cap-add", f"CAP_{name}"]
    else:
        args += ["--uid", str(INNER_ID), "--gid", str(INNER_ID)]
        args += ["--disable-userns"] if can_disable_userns else []
    return args


def sandboxd_command(python: str, client: int) -> list[str]:
    """How sandboxd is started: not as `python BUNDLE`, which would import `runpy` first.

    `client` is the inherited pidfd of this process.
    """
    start = f"import sys; sys.path.insert(0, {BUNDLE!r}); from sandboxd.main import main; main()"
    return ["--", python, "-I", "-S", "-c", start, str(client)]


@dataclass(frozen=True, slots=True)
class Layout:
    """The file systems of one sandbox."""

    spec: SandboxSpec
    python_prefix: str | None

    def writable(self) -> list[str]:
        """The roots of what the workload can write."""
        roots = ["/workspace", HOME, "/tmp", "/dev/shm"]
        if not any(_within(self.spec.workdir, root) for root in roots):
            roots.append(self.spec.workdir)
        return roots

    def owned(self) -> list[str]:
        """Folders that belong to the workload: the writable roots and what lies between them and a mount."""
        folders = self.writable()
        for target in (*(mount.target for mount in self.spec.mounts), f"{self.spec.workdir}/."):
            parent = posixpath.dirname(target)
            for root in self.writable():
                while _within(parent, root) and parent not in folders:
                    folders.append(parent)
                    parent = posixpath.dirname(parent)
        return folders

    def arguments(self, bundle: str, etc: str) -> list[str]:
        """The mounts, in order."""
        args = ["--ro-bind", "/usr", "/usr"]
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            if os.path.islink(f"/{name}"):
                args += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
            elif os.path.isdir(f"/{name}"):
                args += ["--ro-bind", f"/{name}", f"/{name}"]
        args += ["--proc", "/proc", "--dev", "/dev"]
        size = str(self.spec.disk_bytes or DEFAULT_DISK)
        for root in self.writable():
            mode = "1777" if root in ("/tmp", "/dev/shm") else "0755"
            args += [*_parents(root), "--perms", mode, "--size", size, "--tmpfs", root]
        args += _etc(etc, self.spec.network == "host")
        if self.python_prefix is not None:
            args += [*_parents(self.python_prefix), "--ro-bind", self.python_prefix, self.python_prefix]
        for mount in self.spec.mounts:
            if not os.path.exists(mount.source):
                raise SandboxStartError(f"the mount source {mount.source} does not exist")
            kind = "--ro-bind" if mount.read_only else "--bind"
            args += [*_parents(mount.target), kind, os.path.realpath(mount.source), mount.target]
        if self.spec.workdir not in self.writable():
            args += [*_parents(self.spec.workdir), "--perms", "0755", "--dir", self.spec.workdir]
        args += [*_parents(BUNDLE), "--ro-bind", bundle, BUNDLE, "--chdir", "/"]
        return [*args, "--remount-ro", "/dev", "--remount-ro", "/"]


def _etc(made: str, network: bool) -> list[str]:
    args = ["--perms", "0755", "--dir", "/etc"]
    for name in _ETC_MADE:
        args += ["--ro-bind", f"{made}/{name}", f"/etc/{name}"]
    for name in (*_ETC_SHOWN, *(("resolv.conf",) if network else ())):
        if os.path.exists(f"/etc/{name}"):
            args += [*_parents(f"/etc/{name}"), "--ro-bind", os.path.realpath(f"/etc/{name}"), f"/etc/{name}"]
    return args


def _parents(path: str) -> list[str]:
    """Make the folders above `path` for all to enter; bwrap by itself makes them for their owner alone."""
    folder = posixpath.dirname(path)
    return [] if folder == "/" else [*_parents(folder), "--perms", "0755", "--dir", folder]


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(root + "/")
