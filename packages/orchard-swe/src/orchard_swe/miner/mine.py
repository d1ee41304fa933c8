"""Mines a released package: runs its tests, plants faults, keeps those that its tests notice."""

from __future__ import annotations

import logging
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchard_core.domain.types import Split
from orchard_core.env.handle import Provider, Sandbox
from orchard_swe.errors import BaselineError
from orchard_swe.instances import Instance
from orchard_swe.miner.layout import find_layout, test_files
from orchard_swe.miner.localise import find_focus
from orchard_swe.miner.venv import test_environment
from orchard_swe.mutation import Fault, apply_edit, find_faults
from orchard_swe.packages import Package, is_test_path, module_file
from orchard_swe.sdist import fetch_sdist, read_sdist, sha256_of
from orchard_swe.suite import SuiteReport, base_spec, run_suite
from orchard_swe.worktree import pack_tree

log = logging.getLogger(__name__)

MIN_TESTS = 3
MAX_RUN_S = 0.25
MAX_F2P = 12
MAX_P2P = 60
BASELINE_TIMEOUT_S = 120.0
FAULT_TIMEOUT_S = 4.0
_VOLATILE = re.compile(r"0x[0-9a-fA-F]{5,}|/tmp/|/workspace")
_KIND_SHARE = {"variable": 0.18, "arguments": 0.1, "return": 0.06}


@dataclass(frozen=True, slots=True)
class MineOptions:
    """`limit` instances at most, from `attempts` faults at most; caps per function and line."""

    limit: int = 120
    attempts: int = 1500
    per_function: int = 8
    per_line: int = 2
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Baseline:
    """The clean package: stable passing tests with their times, and which tests run each line."""

    package: Package
    files: dict[str, bytes]
    seconds: dict[str, float]
    covering: dict[tuple[str, int], tuple[str, ...]]
    site: Path | None = None


@dataclass(slots=True)
class MineReport:
    """What mining kept, and why the other faults were dropped."""

    package: Package
    instances: list[Instance] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    def with_split(self, split: Split) -> list[Instance]:
        """The instances, all in one split."""
        package = replace(self.package, split=split)
        return [replace(instance, package=package) for instance in self.instances]


async def mine(name: str, version: str, provider: Provider, options: MineOptions) -> MineReport:
    """Mine one package.

    Raises PackageNotFoundError, LayoutError or BaselineError (the caller's), or InfrastructureError.
    """
    archive = fetch_sdist(name, version)
    files = read_sdist(archive)
    package = find_layout(name, version, sha256_of(archive), files)
    baseline = await measure_baseline(package, files, provider)
    report = MineReport(baseline.package)
    async with await provider.create(base_spec(baseline.site)) as sandbox:
        await run_suite(sandbox, baseline.package, tests=[], tree=pack_tree(baseline.files))
        per_kind: Counter[str] = Counter()
        places: Counter[tuple[str, object]] = Counter()
        for attempt, (file, fault) in enumerate(_faults(baseline, options)):
            if len(report.instances) >= options.limit or attempt >= options.attempts:
                break
            share = _KIND_SHARE.get(fault.kind, 0.3)
            full = per_kind[fault.kind] >= max(2, share * options.limit)
            here = (file, fault.function), (file, fault.plant.line)
            if full or places[here[0]] >= options.per_function or places[here[1]] >= options.per_line:
                continue
            made = await _try_fault(sandbox, baseline, file, fault)
            if isinstance(made, str):
                report.dropped[made] += 1
                continue
            report.instances.append(made)
            per_kind[fault.kind] += 1
            places.update(here)
    report.instances.sort(key=lambda i: (i.file, i.line, i.old, i.new, i.occurrence))
    numbered = [replace(i, id=f"{package.key}-{n:04d}") for n, i in enumerate(report.instances, 1)]
    report.package, report.instances = _without_unused_tests(baseline.package, numbered)
    log.info("%s: %d instances; dropped %s", package.key, len(numbered), dict(report.dropped))
    return report


def _without_unused_tests(package: Package, instances: list[Instance]) -> tuple[Package, list[Instance]]:
    """The package with only the tests that some instance names; the instances renumbered to match."""
    used = sorted({index for instance in instances for index in (*instance.f2p, *instance.p2p)})
    place = {old: new for new, old in enumerate(used)}
    tests = tuple(package.tests[index] for index in used)
    modules = {module_file(package, test) for test in tests}
    slim = replace(package, tests=tests, modules=tuple(m for m in package.modules if m in modules))
    renumbered = [
        replace(
            instance,
            package=slim,
            f2p=tuple(place[index] for index in instance.f2p),
            p2p=tuple(place[index] for index in instance.p2p),
        )
        for instance in instances
    ]
    return slim, renumbered


async def measure_baseline(package: Package, files: dict[str, bytes], provider: Provider) -> Baseline:
    """Run the clean package's tests three times (once traced); slow ones are left out.

    Raises BaselineError.
    """
    kept = {path: body for path, body in files.items() if path.startswith(package.keep)}
    tree = pack_tree(kept)
    stderr = ""
    for candidate in (package, replace(package, runner="pytest", modules=test_files(package, kept))):
        site = test_environment(candidate) if candidate.runner == "pytest" else None
        async with await provider.create(base_spec(site)) as sandbox:
            first = await run_suite(sandbox, candidate, tree=tree, timeout_s=BASELINE_TIMEOUT_S)
            stderr = first.stderr or stderr
            passing = [test for test in first.outcomes if first.passed(test)]
            if len(passing) < MIN_TESTS:
                continue
            second = await run_suite(sandbox, candidate, tests=passing, timeout_s=BASELINE_TIMEOUT_S)
            quick = [t for t in passing if second.passed(t) and second.seconds[t] <= MAX_RUN_S]
            traced = await run_suite(
                sandbox, candidate, tests=quick, trace=True, timeout_s=BASELINE_TIMEOUT_S
            )
            stable = [test for test in quick if traced.passed(test)]
            if len(stable) >= MIN_TESTS:
                return _baseline(replace(candidate, tests=tuple(stable)), kept, second, traced, site)
    detail = f" ({stderr.strip().splitlines()[-1][:120]})" if stderr.strip() else ""
    raise BaselineError(
        f"fewer than {MIN_TESTS} tests of {package.name} {package.version} pass on the clean package{detail};"
        " it cannot be mined"
    )


def _baseline(
    package: Package, files: dict[str, bytes], timed: SuiteReport, traced: SuiteReport, site: Path | None
) -> Baseline:
    covering: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for test in package.tests:
        for file, lines in traced.lines.get(test, {}).items():
            for line in lines:
                covering[file, line].append(test)
    used = {module_file(package, test) for test in package.tests}
    modules = tuple(module for module in package.modules if module in used)
    return Baseline(
        replace(package, modules=modules),
        files,
        timed.seconds,
        {k: tuple(v) for k, v in covering.items()},
        site,
    )


def _faults(baseline: Baseline, options: MineOptions) -> Iterator[tuple[str, Fault]]:
    """Covered faults: files in turn, at random within a file."""
    generator = random.Random(f"{options.seed}:{baseline.package.key}")
    queues: list[tuple[str, list[Fault]]] = []
    for path in sorted(baseline.files):
        if path.startswith(baseline.package.sources) and path.endswith(".py") and not is_test_path(path):
            try:
                faults = find_faults(baseline.files[path].decode())
            except (SyntaxError, UnicodeDecodeError):
                continue
            covered = [fault for fault in faults if (path, fault.plant.line) in baseline.covering]
            generator.shuffle(covered)
            queues.append((path, covered))
    while queues:
        path, faults = generator.choices(queues, [len(queue[1]) + 1 for queue in queues])[0]
        if faults:
            yield path, faults.pop()
        else:
            queues = [queue for queue in queues if queue[1]]


async def _try_fault(sandbox: Sandbox, baseline: Baseline, file: str, fault: Fault) -> Instance | str:
    """An instance, or why there is none."""
    package = baseline.package
    overlay = file, apply_edit(baseline.files[file].decode(), fault.plant).encode()
    covering = _quickest(baseline, baseline.covering[file, fault.plant.line], 40, MAX_RUN_S)
    first = await run_suite(sandbox, package, tests=covering, overlay=overlay, timeout_s=FAULT_TIMEOUT_S)
    if first.timed_out:
        return "hangs"
    failing = [test for test in covering if first.failed(test)][:MAX_F2P]
    if not failing:
        return "unnoticed"
    others = _companions(baseline, covering, failing, first)
    chosen = [test for test in package.tests if test in {*failing, *others}]
    second = await run_suite(
        sandbox, package, tests=chosen, overlay=overlay, trace=True, timeout_s=3 * FAULT_TIMEOUT_S
    )
    if second.timed_out:
        return "hangs"
    if not all(second.failed(test) for test in failing):
        return "flaky"
    others = [test for test in others if second.passed(test)]
    shown = failing[0]
    error = second.outcomes[shown][1]
    if _VOLATILE.search(error) or error != first.outcomes[shown][1] or not error.isprintable():
        return "volatile error"
    trace = [place for place in second.where[shown] if not is_test_path(place[0])]
    focus = find_focus(second.lines, failing, others, trace)
    if focus is None or focus.file != file or fault.plant.line not in focus.lines:
        return "not in focus"
    index = {test: n for n, test in enumerate(package.tests)}
    repair = fault.repair
    return Instance(
        id="", package=package, file=file, line=repair.line, old=repair.old, new=repair.new,
        occurrence=repair.occurrence, plant_occurrence=fault.plant.occurrence, kind=fault.kind,
        function=fault.function, f2p=tuple(sorted(index[test] for test in failing)),
        p2p=tuple(sorted(index[test] for test in others)), focus=focus.lines, marked=focus.marked,
        error=error[:80],
    )  # fmt: skip


def _quickest(baseline: Baseline, tests: tuple[str, ...], count: int, seconds: float) -> list[str]:
    """The quickest of `tests` within a budget (at least one), in suite order."""
    chosen: set[str] = set()
    total = 0.0
    for test in sorted(tests, key=lambda name: baseline.seconds.get(name, 0.0)):
        total += baseline.seconds.get(test, 0.0)
        if len(chosen) >= count or (chosen and total > seconds):
            break
        chosen.add(test)
    return [test for test in tests if test in chosen]


def _companions(baseline: Baseline, covering: list[str], failing: list[str], first: SuiteReport) -> list[str]:
    """The tests that must keep passing: first those that run the line, then their modules' others."""
    modules = {module_file(baseline.package, test) for test in failing}
    near = [test for test in covering if first.passed(test)]
    tried = set(covering)
    rest = tuple(
        t for t in baseline.package.tests if t not in tried and module_file(baseline.package, t) in modules
    )
    return (near + _quickest(baseline, rest, MAX_P2P, MAX_RUN_S))[:MAX_P2P]
