"""sandboxd with its own interpreter, loader and libraries: one folder that runs inside any Linux image.

The image needs no Python and no C library; a musl or an empty image will do. The folder is made from an
interpreter of this machine, with only those modules that sandboxd imports, and can be moved anywhere.

    ROOT/lib/ld.so and libraries    ROOT/bin/python3    ROOT/python (modules)    ROOT/sandboxd.pyz
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from orchard_core.env.bundle import sandbox_python, sandboxd_bundle
from orchard_core.env.errors import ProviderUnavailableError

# Run by the interpreter that is copied: lists the files of every module that sandboxd may import.
_LIST_MODULES = """
import json, os, pkgutil, sys
for absent in ("_hashlib", "_bz2", "_lzma"):  # large libraries, of which sandboxd needs nothing
    sys.modules[absent] = None
sys.path.insert(0, sys.argv[1])
import encodings.utf_8, encodings.ascii, encodings.latin_1, encodings.idna
import ctypes, hashlib, hmac, pty, stat, tarfile, termios, traceback, tty  # imported late, where needed
for module in pkgutil.iter_modules([sys.argv[1] + "/sandboxd"]):
    if module.name != "__main__":
        __import__("sandboxd." + module.name)
files = {}
for name, module in list(sys.modules.items()):
    file = getattr(module, "__file__", None)
    if file and not name.startswith("sandboxd"):
        files[module.__name__] = [file, hasattr(module, "__path__")]
print(json.dumps({"executable": os.path.realpath(sys.executable), "files": files}))
"""
_START = "import sys; sys.path[:] = [{python!r}, {zip!r}]; from sandboxd.{module} import main; main()"


def runtime_argv(root: str, module: str = "main") -> list[str]:
    """The command that runs `sandboxd.<module>.main()` from a runtime folder shown at `root` inside a sandbox."""
    start = _START.format(python=f"{root}/python", zip=f"{root}/sandboxd.pyz", module=module)
    loader = [f"{root}/lib/ld.so", "--library-path", f"{root}/lib"]
    # PYTHONHOME would be ignored under -I; the prefix is found by the landmark next to the interpreter.
    return [*loader, f"{root}/bin/python3", "-I", "-S", "-X", "frozen_modules=on", "-c", start]


def build_runtime(target: Path) -> Path:
    """Make the runtime folder at `target`, which must not exist; returns it.

    Raises ProviderUnavailableError where this machine has no interpreter that can be copied (it needs
    Linux with the GNU C library).
    """
    python, _prefix = sandbox_python()
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        _fill(staging, python)
        os.chmod(staging, 0o755)
        os.rename(staging, target)
    finally:
        if staging.exists():
            shutil.rmtree(staging)
    return target


def _fill(root: Path, python: str) -> None:
    source = Path(__file__).parent.parent
    listed = json.loads(_run([python, "-I", "-S", "-c", _LIST_MODULES, str(source)]))
    extensions = _copy_modules(listed["files"], root / "python")
    executable = Path(listed["executable"])
    _copy(executable, root / "bin/python3", 0o755)
    version = re.search(r"(\d+)\.(\d+)", _run([python, "--version"]))
    assert version is not None
    # The landmarks by which the interpreter finds its prefix, so that it does not complain.
    home = root / "lib" / f"python{version[1]}.{version[2]}"
    (home / "lib-dynload").mkdir(parents=True)
    shutil.copyfile(listed["files"]["os"][0], home / "os.py")
    os.symlink("../../python/encodings", home / "encodings")
    for library in _libraries([executable, *extensions]):
        _copy(library, root / "lib" / library.name, 0o755)
    _copy(_loader(executable), root / "lib/ld.so", 0o755)
    _copy(sandboxd_bundle(python), root / "sandboxd.pyz", 0o644)
    _compile(root, python)


def _copy_modules(files: dict[str, list[object]], target: Path) -> list[Path]:
    """Copy the modules' files; returns the extension modules (their originals)."""
    extensions = []
    for name, (file, is_package) in files.items():
        path = Path(str(file))
        if name == "__main__" or not path.exists():
            continue
        parts = name.split(".")
        if path.suffix == ".so":
            extensions.append(path)
            _copy(path, target.joinpath(*parts[:-1], path.name), 0o755)
        else:
            inner = [*parts, "__init__.py"] if is_package else [*parts[:-1], f"{parts[-1]}.py"]
            _copy(path, target.joinpath(*inner), 0o644)
    return extensions


def _compile(root: Path, python: str) -> None:
    """Unchecked .pyc files, since the folder is shown read-only and its times mean nothing."""
    code = "import compileall, py_compile, sys; sys.exit(not compileall.compile_dir(sys.argv[1], quiet=2, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH))"
    _run([python, "-I", "-S", "-c", code, str(root / "python")])


def _libraries(binaries: list[Path]) -> list[Path]:
    found: dict[str, Path] = {}
    for binary in binaries:
        for line in _run(["ldd", str(binary)]).splitlines():
            match = re.search(r"=> (/\S+) \(", line)
            if match:
                found.setdefault(Path(match[1]).name, Path(match[1]))
            elif "not found" in line:
                raise ProviderUnavailableError(f"{binary} can't be copied into sandboxes: {line.strip()}")
    return list(found.values())


def _loader(executable: Path) -> Path:
    match = re.search(r"^\s*(/\S*ld\S*\.so\S*) \(", _run(["ldd", str(executable)]), re.MULTILINE)
    if match is None:
        raise ProviderUnavailableError(
            f"{executable} is not a dynamic program of the GNU C library, as sandboxes need"
        )
    return Path(match[1])


def _copy(source: Path, target: Path, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(mode)


def _run(argv: list[str]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ProviderUnavailableError(
            f"{argv[0]} is needed to build the sandbox runtime: {error.strerror}"
        ) from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ProviderUnavailableError(f"{argv[0]} failed while the sandbox runtime was built: {last}")
    return done.stdout
