"""Finds a source distribution's importable sources and its tests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from email.parser import Parser

from orchard_swe.errors import LayoutError
from orchard_swe.packages import Package, is_test_path

_NOT_SOURCE = frozenset(
    [
        "setup",
        "conftest",
        "noxfile",
        "tasks",
        "fabfile",
        "versioneer",
        "conf",
        "doc",
        "docs",
        "example",
        "examples",
        "benchmark",
        "benchmarks",
        "scripts",
        "tools",
        "bin",
        "build",
        "dist",
        "test",
        "tests",
        "testing",
        "ext_tests",
        "property_tests",
        "utils",
        "samples",
        "demo",
    ]
)
_PYTHON_TEST = re.compile(r"(^|/)(test[^/]*|[^/]*_tests?|tests)\.py$")


def find_layout(name: str, version: str, sha256: str, files: Mapping[str, bytes]) -> Package:
    """The package's description, without its tests' ids. Raises LayoutError."""
    sources = _sources(name, files)
    if not sources:
        raise LayoutError(f"{name} {version} has no importable Python source; it cannot be mined")
    tests = [
        path
        for path in files
        if _PYTHON_TEST.search(path) and is_test_path(path) and not path.endswith("/tests/__init__.py")
    ]
    tests = [path for path in tests if not path.startswith(("examples/", "docs/", "benchmarks/"))]
    if not tests:
        raise LayoutError(f"{name} {version} ships no tests in its source distribution; it cannot be mined")
    metadata = Parser().parsestr(files.get("PKG-INFO", b"").decode("utf-8", "replace"))
    roots = [*dict.fromkeys("src" if path.startswith("src/") else "." for path in sources)]
    modules, test_roots = [], []
    for path in sorted(tests):
        root, module = _module(path, files)
        modules.append(module)
        test_roots.append(root)
    keep = [*sources, *dict.fromkeys(_test_prefix(path) for path in tests), "conftest.py"]
    return Package(
        name=name, version=version, sha256=sha256, licence=_licence(metadata.items()), runner="unittest",
        paths=tuple(dict.fromkeys([*roots, *test_roots])), sources=tuple(sources), keep=tuple(dict.fromkeys(keep)),
        modules=tuple(modules), requires=tuple(_requires(metadata.get_all("Requires-Dist") or [])),
    )  # fmt: skip


def test_files(package: Package, files: Mapping[str, bytes]) -> tuple[str, ...]:
    """The test modules as files, the form that pytest takes."""
    by_module = {_module(path, files)[1]: path for path in files if path.endswith(".py")}
    return tuple(by_module[module] for module in package.modules if module in by_module)


def _sources(name: str, files: Mapping[str, bytes]) -> list[str]:
    """Prefixes of importable packages and modules: those that the distribution names, or all."""
    found: dict[str, str] = {}
    for path in files:
        parts = path.split("/")
        inner = parts[1:] if parts[0] == "src" else parts
        if len(inner) == 2 and inner[1] == "__init__.py":
            found[inner[0]] = path.removesuffix("__init__.py")
        elif len(inner) == 1 and path.endswith(".py") and not is_test_path(path):
            found[inner[0].removesuffix(".py")] = path
    found = {key: path for key, path in found.items() if key not in _NOT_SOURCE}
    named = {
        line.strip()
        for path, body in files.items()
        if path.endswith("top_level.txt")
        for line in body.decode().split()
    }
    plain = re.sub(r"[-.]+", "_", name).lower()
    chosen = [path for key, path in found.items() if key in named or key.lower() == plain]
    return sorted(chosen or found.values())


def _module(path: str, files: Mapping[str, bytes]) -> tuple[str, str]:
    """The import root and the dotted name of a Python file."""
    parts = path.removesuffix(".py").split("/")
    start = len(parts) - 1
    while start > 0 and "/".join([*parts[:start], "__init__.py"]) in files:
        start -= 1
    return "/".join(parts[:start]) or ".", ".".join(parts[start:])


def _test_prefix(path: str) -> str:
    """The test folder that holds a test file, or the file itself."""
    parts = path.split("/")
    for depth, folder in enumerate(parts[:-1], 1):
        if folder in ("test", "tests", "testing"):
            return "/".join(parts[:depth]) + "/"
    return path


def _licence(headers: Iterable[tuple[str, str]]) -> str:
    fields = list(headers)
    for wanted in ("License-Expression", "License"):
        for key, value in fields:
            if key == wanted and value and value != "UNKNOWN" and len(value) < 60:
                return value
    for key, value in fields:
        if key == "Classifier" and value.startswith("License ::"):
            return value.rsplit(" :: ", 1)[1]
    return "unknown"


def _requires(values: list[str]) -> list[str]:
    """The unconditional requirements."""
    return [re.sub(r"\s*\(([^)]*)\)", r"\1", value) for value in values if ";" not in value]
