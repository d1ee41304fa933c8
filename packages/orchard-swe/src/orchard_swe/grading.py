"""Grades an agent's diff: fresh sandbox, filtered changes, all tests, results out of reach."""

from __future__ import annotations

import logging

from orchard_core.domain.types import Reward
from orchard_core.env.handle import Provider
from orchard_swe.errors import PatchError
from orchard_swe.instances import Instance
from orchard_swe.miner.venv import test_environment
from orchard_swe.patching import apply_patches, filter_patches, parse_patch
from orchard_swe.suite import SuiteReport, base_spec, run_suite
from orchard_swe.worktree import pack_tree

log = logging.getLogger(__name__)

GRADE_TIMEOUT_S = 10.0


async def grade_patch(instance: Instance, patch: bytes, provider: Provider) -> Reward:
    """Success when every failing test passes and every passing test still does.

    Parts: `f2p` and `p2p` are the shares that pass. A diff that cannot be read or does not fit, and
    tests that hang, crash or are missing, are the agent's failure. Raises InfrastructureError.
    """
    faulty = instance.faulty_files()
    try:
        patches, dropped = filter_patches(parse_patch(patch))
        files = apply_patches(faulty, patches)
    except PatchError as error:
        return Reward.failure(reason=str(error), f2p=0.0, p2p=0.0)
    if dropped:
        log.info("%s: dropped %s", instance.id, dropped)
    tests = [*instance.fail_to_pass, *instance.pass_to_pass]
    site = test_environment(instance.package) if instance.package.runner == "pytest" else None
    changed = frozenset(path for path, body in files.items() if faulty.get(path) != body)
    tree = pack_tree(files, uncompiled=changed | {instance.file})
    async with await provider.create(
        base_spec(site, labels={"task": instance.id, "role": "grader"})
    ) as sandbox:
        report = await run_suite(sandbox, instance.package, tests=tests, tree=tree, timeout_s=GRADE_TIMEOUT_S)
    return _reward(instance, report)


def _reward(instance: Instance, report: SuiteReport) -> Reward:
    f2p = _share(instance.fail_to_pass, report)
    p2p = _share(instance.pass_to_pass, report)
    if f2p == p2p == 1.0:
        return Reward.success(f2p=f2p, p2p=p2p)
    reason = "the tests hang" if report.timed_out else "tests fail"
    return Reward.failure(reason=reason, f2p=f2p, p2p=p2p)


def _share(tests: tuple[str, ...], report: SuiteReport) -> float:
    return sum(map(report.passed, tests)) / len(tests) if tests else 1.0
