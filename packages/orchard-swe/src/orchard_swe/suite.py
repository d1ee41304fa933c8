"""Runs tests of a package in a sandbox and reads their outcomes."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchard_core.env.errors import SandboxError, SandboxFileError
from orchard_core.env.handle import Sandbox
from orchard_core.env.spec import Mount, SandboxSpec
from orchard_swe.packages import Package

ROOT = "/workspace"
TOOLBOX = "/opt/orchard-swe/toolbox"
PYTHON = "/opt/orchard-swe/python"
SITE = "/opt/orchard-swe/site"
EXEC_SLACK_S = 30.0


@dataclass(frozen=True, slots=True)
class SuiteReport:
    """Outcomes of a run: test id -> (passed, failed or skipped; the short error)."""

    outcomes: dict[str, tuple[str, str]]
    timed_out: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    where: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    stderr: str = ""

    def passed(self, test: str) -> bool:
        return self.outcomes.get(test, ("", ""))[0] == "passed"

    def failed(self, test: str) -> bool:
        return self.outcomes.get(test, ("", ""))[0] == "failed"


def toolbox_dir() -> Path:
    return Path(__file__).parent / "toolbox"


def python_path() -> str:
    return f"{PYTHON}/bin/python{sys.version_info.major}.{sys.version_info.minor}"


def base_spec(site: Path | None = None, **fields: Any) -> SandboxSpec:
    """A sandbox with the toolbox and this interpreter's standard library, both read-only."""
    mounts = [Mount(str(toolbox_dir()), TOOLBOX), Mount(str(Path(sys.base_prefix).resolve()), PYTHON)]
    if site is not None:
        mounts.append(Mount(str(site), SITE))
    return SandboxSpec(workdir=ROOT, mounts=tuple(mounts), **fields)


async def run_suite(
    sandbox: Sandbox,
    package: Package,
    *,
    tests: Sequence[str] | None = None,
    tree: bytes = b"",
    overlay: tuple[str, bytes] | None = None,
    trace: bool = False,
    timeout_s: float = 10.0,
) -> SuiteReport:
    """Run `tests` (all modules when None), after unpacking `tree` and with one file replaced.

    An overlaid file is put back afterwards. Raises SandboxError when the runner itself did not work.
    """
    marker = secrets.token_hex(16)
    out = f"/tmp/orchard-{secrets.token_hex(8)}.json"
    request = {
        "root": ROOT, "paths": package.paths, "site": SITE if package.runner == "pytest" else "",
        "runner": package.runner, "tests": tests, "modules": None if tests is not None else package.modules,
        "trace": package.sources if trace else None, "timeout": timeout_s, "out": out,
    }  # fmt: skip
    script, body = f"exec {python_path()} -I -S -B {TOOLBOX}/runner.py", b""
    if overlay is not None:
        path, body = overlay
        script = (
            f"cp -p '{path}' /tmp/clean && head -c {len(body)} > '{path}' &&"
            f" {python_path()} -I -S -B {TOOLBOX}/runner.py; code=$?; cp -p /tmp/clean '{path}'; exit $code"
        )
    if tree:
        script = f"head -c {len(tree)} | tar xf - --no-same-owner -C {ROOT} && {script}"
    stdin = tree + body + json.dumps(request).encode() + b"\n" + marker.encode() + b"\n"
    done = await sandbox.exec(script, stdin=stdin, timeout=timeout_s + EXEC_SLACK_S)
    if done.exit_code != 0:
        said = done.stderr.decode("utf-8", "replace").strip()[-300:]
        raise SandboxError(f"the test runner ended with status {done.exit_code}: {said or 'no output'}")
    try:
        report = json.loads(await sandbox.read_file(out))
    except (SandboxFileError, ValueError) as error:
        raise SandboxError(f"the test runner left no readable result: {error}") from None
    if report["marker"] != marker:
        raise SandboxError("the result file does not carry this run's marker")
    clean_end = report["status"] == 0
    return SuiteReport(
        outcomes={test: (outcome, text) for test, (outcome, text) in report["outcomes"].items()}
        if clean_end
        else {},
        timed_out=report["timed_out"],
        seconds=report["seconds"],
        lines=report["lines"],
        where={test: [(path, line) for path, line in places] for test, places in report["where"].items()},
        stderr=done.stderr.decode("utf-8", "replace"),
    )
