"""Builds sandboxd's zipapp once per content and interpreter, into the cache folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import orchard_core.sandboxd
from orchard_core.env.errors import ProviderUnavailableError

# Runs under the interpreter that will run sandboxd, since .pyc files fit only one version.
# Hash-based unchecked .pyc files: zipimport then neither compares times nor compiles.
_BUILD = """
import importlib._bootstrap_external as external, os, sys, zipfile
source, target = sys.argv[1:]
with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as bundle:
    def put(name, data):
        bundle.writestr(zipfile.ZipInfo(name), data)
    put("__main__.py", "from sandboxd.main import main\\nmain()\\n")
    for name in sorted(os.listdir(source)):
        if name.endswith(".py"):
            text = open(os.path.join(source, name), "rb").read()
            code = compile(text, "sandboxd/" + name, "exec", dont_inherit=True, optimize=0)
            put("sandboxd/" + name, text)
            put("sandboxd/" + name + "c", bytes(external._code_to_hash_pyc(code, b"\\0" * 8, False)))
"""


def cache_folder() -> Path:
    """`$ORCHARD_CACHE`, else `~/.cache/orchard`."""
    configured = os.environ.get("ORCHARD_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "orchard"


def sandboxd_bundle(python: str) -> Path:
    """The zipapp for the interpreter `python` (host path); built on first use.

    Raises ProviderUnavailableError when that interpreter can't build it.
    """
    source = Path(orchard_core.sandboxd.__file__).parent
    digest = hashlib.sha256(_BUILD.encode())
    info = os.stat(python)
    digest.update(f"{os.path.realpath(python)} {info.st_size} {info.st_mtime_ns}".encode())
    for file in sorted(source.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    target = cache_folder() / "sandboxd" / f"{digest.hexdigest()[:24]}.pyz"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        _build(python, source, target)
    return target


def _build(python: str, source: Path, target: Path) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, suffix=".part")
    os.close(handle)
    built = subprocess.run(
        [python, "-I", "-S", "-c", _BUILD, str(source), name], capture_output=True, text=True, check=False
    )
    if built.returncode != 0:
        os.unlink(name)
        last = (built.stderr.strip().splitlines() or ["no message"])[-1]
        raise ProviderUnavailableError(f"{python} could not build sandboxd: {last}")
    os.chmod(name, 0o644)
    os.replace(name, target)


def sandbox_python() -> tuple[str, str | None]:
    """The interpreter for sandboxd and, unless it lies in /usr, the host prefix to show inside."""
    if os.path.exists("/usr/bin/python3"):
        return "/usr/bin/python3", None
    prefix = os.path.realpath(sys.base_prefix)
    return f"{prefix}/bin/python{sys.version_info[0]}.{sys.version_info[1]}", prefix
