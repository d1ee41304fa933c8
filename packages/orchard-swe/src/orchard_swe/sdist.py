"""Fetches released source distributions and reads them safely, in memory."""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from functools import lru_cache
from pathlib import Path, PurePosixPath

from orchard_swe.errors import ChecksumError, PackageNotFoundError, UnsafeArchiveError

FETCH_TIMEOUT_S = 300
MAX_FILE_BYTES = 2_000_000
MAX_TOTAL_BYTES = 60_000_000


def cache_dir() -> Path:
    """`$ORCHARD_CACHE/sdists`, by default below the user's cache folder."""
    base = os.environ.get("ORCHARD_CACHE")
    return (Path(base) if base else Path.home() / ".cache" / "orchard") / "sdists"


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def fetch_sdist(name: str, version: str, sha256: str | None = None) -> Path:
    """The path of a package's source distribution in the cache, fetched when it is not there.

    The package index is the one that pip is set up for. Raises PackageNotFoundError or ChecksumError.
    """
    folder = cache_dir() / f"{_normal(name)}-{version}"
    for path in sorted(folder.glob("*")) if folder.is_dir() else []:
        if not path.name.startswith(".") and (sha256 is None or sha256_of(path) == sha256):
            return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as temporary:
        fetched = _download(name, version, Path(temporary))
        found = sha256_of(fetched)
        if sha256 is not None and found != sha256:
            raise ChecksumError(
                f"the source distribution of {name} {version} has sha256 {found}, not {sha256};"
                " the index offers another file than the list names"
            )
        target = folder / fetched.name
        fetched.replace(target)
    return target


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pip() -> list[str]:
    """A command that runs pip: this interpreter's, the one on PATH, or uv's."""
    for command in ([sys.executable, "-m", "pip"], ["python3", "-m", "pip"]):
        if (
            shutil.which(command[0])
            and subprocess.run([*command, "--version"], capture_output=True).returncode == 0
        ):
            return command
    if shutil.which("uv"):
        return ["uv", "tool", "run", "pip"]
    raise PackageNotFoundError(
        "fetching source distributions needs pip; install it with: python -m ensurepip"
    )


def _download(name: str, version: str, folder: Path) -> Path:
    base = [*_pip(), "download", "--quiet", "--no-deps", "--no-binary", ":all:", "-d", str(folder)]
    message = ""
    for extra in ([], ["--no-build-isolation"]):  # pip asks the build backend for metadata; either may work
        try:
            done = subprocess.run(
                [*base, *extra, f"{name}=={version}"], capture_output=True, text=True, timeout=FETCH_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise PackageNotFoundError(f"fetching {name} {version} took over {FETCH_TIMEOUT_S} s") from None
        fetched = [path for path in folder.iterdir() if path.name.endswith((".tar.gz", ".zip"))]
        if done.returncode == 0 and fetched:
            return fetched[0]
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        message = errors[-1] if errors else done.stderr.strip()[-200:]
        if "No matching distribution" in message:
            break
    raise PackageNotFoundError(
        f"the package index has no usable source distribution of {name} {version}; check name and version ({message})"
    )


@lru_cache(maxsize=4)
def read_sdist(path: Path) -> dict[str, bytes]:
    """The files of a source distribution, by path below its top folder, without unpacking to disk.

    Links and special files are left out. Raises UnsafeArchiveError on paths that leave the folder.
    """
    data = path.read_bytes()
    files = _read_zip(data) if zipfile.is_zipfile(io.BytesIO(data)) else _read_tar(data, path.name)
    tops = {name.split("/", 1)[0] for name in files}
    if len(tops) != 1:
        raise UnsafeArchiveError(f"{path.name} does not have one top folder")
    return {name.split("/", 1)[1]: body for name, body in sorted(files.items()) if "/" in name}


def _checked(name: str, size: int, total: int, archive: str) -> str:
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
        raise UnsafeArchiveError(f"{archive} holds the unsafe path {name!r}")
    if total + size > MAX_TOTAL_BYTES:
        raise UnsafeArchiveError(f"{archive} unpacks to more than {MAX_TOTAL_BYTES} bytes")
    return "/".join(part for part in parts if part != ".")


def _read_tar(data: bytes, archive: str) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                name = _checked(member.name, member.size if member.isreg() else 0, total, archive)
                if member.isreg() and member.size <= MAX_FILE_BYTES:
                    body = tar.extractfile(member)
                    files[name] = body.read() if body else b""
                    total += member.size
    except tarfile.TarError as error:
        raise UnsafeArchiveError(f"{archive} cannot be read: {error}") from None
    return files


def _read_zip(data: bytes) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    total = 0
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist():
            name = _checked(entry.filename, entry.file_size, total, "the archive")
            if not entry.is_dir() and entry.file_size <= MAX_FILE_BYTES:
                files[name] = archive.read(entry)
                total += entry.file_size
    return files
