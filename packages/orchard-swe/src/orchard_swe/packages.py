"""What Orchard knows of one package: where its sources and tests are and how its tests run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from orchard_swe.sdist import fetch_sdist, read_sdist

Runner = Literal["unittest", "pytest"]


@dataclass(frozen=True, slots=True)
class Package:
    """`paths` are import roots, `sources` and `keep` path prefixes, all relative to the repository.

    `keep` names the files that the working tree holds; `modules` are the test modules (dotted for
    unittest, files for pytest); `tests` the ids that pass on the clean package, in a fixed order.
    """

    name: str
    version: str
    sha256: str
    licence: str
    runner: Runner
    paths: tuple[str, ...]
    sources: tuple[str, ...]
    keep: tuple[str, ...]
    modules: tuple[str, ...]
    requires: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    split: Literal["train", "held_out"] = "train"

    @property
    def key(self) -> str:
        return f"{self.name}-{self.version}"

    def files(self) -> dict[str, bytes]:
        """The working tree's files, from the cached source distribution."""
        archive = fetch_sdist(self.name, self.version, self.sha256)
        return {name: body for name, body in read_sdist(archive).items() if name.startswith(self.keep)}


def is_test_path(path: str) -> bool:
    """Whether a path names a test, its helper or test data."""
    *folders, name = path.lower().split("/")
    if any(folder in ("test", "tests", "testing", "ext_tests") for folder in folders):
        return True
    stem = name.removesuffix(".py")
    named = stem in ("test", "tests", "conftest") or stem.startswith(("test_", "test-"))
    return name.endswith(".py") and (named or stem.endswith(("_test", "_tests")))


def to_json(package: Package) -> dict[str, Any]:
    """A compact record; the tests are grouped by their owner (class or file)."""
    separator = "::" if package.runner == "pytest" else "."
    tests: list[tuple[str, list[str]]] = []
    for test in package.tests:
        owner, _, name = test.rpartition(separator)
        if not tests or tests[-1][0] != owner:
            tests.append((owner, []))
        tests[-1][1].append(name)
    return {
        "name": package.name, "version": package.version, "sha256": package.sha256, "licence": package.licence,
        "split": package.split, "runner": package.runner, "paths": package.paths, "sources": package.sources,
        "keep": package.keep, "modules": package.modules, "requires": package.requires, "tests": tests,
    }  # fmt: skip


def from_json(record: dict[str, Any]) -> Package:
    separator = "::" if record["runner"] == "pytest" else "."
    tests = tuple(f"{owner}{separator}{name}" for owner, names in record["tests"] for name in names)
    plain: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in record.items()
    }
    return replace(Package(**{**plain, "tests": ()}), tests=tests)


@lru_cache(maxsize=64)
def module_file(package: Package, test: str) -> str:
    """The test module (or file) that a test id belongs to."""
    if package.runner == "pytest":
        return test.split("::", 1)[0]
    return max(
        (m for m in package.modules if test.startswith(m + ".")), key=len, default=test.rsplit(".", 2)[0]
    )
