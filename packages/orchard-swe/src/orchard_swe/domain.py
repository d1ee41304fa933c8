"""The software-engineering domain: repair a fault in a released package, judged by its own tests."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from orchard_core.domain.types import Reward, Split, Task
from orchard_core.env.errors import SandboxError
from orchard_core.env.handle import Provider, Sandbox
from orchard_core.errors import UsageError
from orchard_core.options import options_from
from orchard_swe.errors import InstanceError
from orchard_swe.gitrepo import Repository, build_repository
from orchard_swe.grading import grade_patch
from orchard_swe.instances import Instance, find_instance, gold_patch, load_instances
from orchard_swe.miner.venv import test_environment
from orchard_swe.practice import practice
from orchard_swe.prompt import instruction, narrowed
from orchard_swe.suite import PYTHON, ROOT, SITE, TOOLBOX, base_spec, python_path
from orchard_swe.teacher import ScriptedTeacher, TeacherStyle, example_commands
from orchard_swe.worktree import pack_tree

PATH = f"{TOOLBOX}/bin:{PYTHON}/bin:/usr/local/bin:/usr/bin:/bin"
SETUP_TIMEOUT_S = 30.0
CORPUS_COMMANDS = 6


@dataclass(frozen=True, slots=True)
class PracticeOptions:
    """`system` is the harness's system prompt; a repair comes after 0 to `failed_attempts` wrong ones."""

    system: str = ""
    failed_attempts: int = 0


class SweDomain:
    """Tasks from the shipped list of mined repairs.

    Options of `tasks`: `limit` (at most so many), `seed` (shuffle before the limit; without it the
    order is the list's), `packages`, `kinds` and `ids` (lists of names to keep), `rows` (show at most
    so many rows of each issue, and leave out the tasks whose fault would not be among them).
    """

    @property
    def name(self) -> str:
        return "swe"

    def tasks(self, split: Split, options: Mapping[str, Any]) -> Sequence[Task]:
        """Raises UsageError for bad options, PackageNotFoundError when a package cannot be fetched."""
        chosen = _select(load_instances(split), options)
        return [make_task(instance) for instance in chosen]

    async def prepare(self, task: Task, sandbox: Sandbox) -> None:
        """Unpack the faulty package, a repository of one commit, in one command."""
        tree = _working_tree(task.id)
        done = await sandbox.exec(f"tar xf - --no-same-owner -C {ROOT}", stdin=tree, timeout=SETUP_TIMEOUT_S)
        if not done.ok:
            said = done.stderr.decode("utf-8", "replace").strip()[-200:]
            raise SandboxError(f"the working tree of {task.id} could not be unpacked: {said}")

    async def collect(self, task: Task, sandbox: Sandbox) -> Mapping[str, bytes]:
        """The agent's diff against the starting commit, untracked files included."""
        base = _repository(task.id).commit
        command = (
            "git add --all --intent-to-add . 2>/dev/null;"
            f" git -c core.quotePath=false diff --no-renames --no-ext-diff --no-textconv --no-color {base} --"
        )
        done = await sandbox.exec(command, cwd=ROOT, timeout=SETUP_TIMEOUT_S)
        return {"patch": done.stdout if done.exit_code == 0 and not done.stdout_dropped else b""}

    async def grade(self, task: Task, result: Mapping[str, bytes], provider: Provider) -> Reward:
        """See `orchard_swe.grading.grade_patch`. An empty diff fails without a run: the fault is known to fail."""
        patch = result.get("patch", b"")
        if not patch.strip():
            return Reward.failure(reason="nothing was changed", f2p=0.0, p2p=1.0)
        return await grade_patch(find_instance(task.id), patch, provider)

    def reference(self, task: Task) -> Mapping[str, bytes]:
        """The repair itself, as a diff."""
        return {"patch": gold_patch(find_instance(task.id)).encode()}

    def teacher(
        self, task_of: Callable[[str], Task], options: Mapping[str, Any], seed: int
    ) -> ScriptedTeacher:
        """A scripted teacher; `options` are fields of TeacherStyle."""
        return ScriptedTeacher(task_of, options_from(TeacherStyle, options, "the teacher"), seed)

    def practice(
        self, tasks: Sequence[Task], options: Mapping[str, Any], seed: int
    ) -> Iterator[list[dict[str, Any]]]:
        """See `orchard_swe.practice`; `options` are fields of PracticeOptions."""
        found = options_from(PracticeOptions, options, "practice")
        return practice(tasks, found.system, found.failed_attempts, seed)

    def corpus(self, tasks: Sequence[Task], seed: int) -> Iterator[str]:
        """Issues, and commands and answers as they occur in conversations about them."""
        generator = random.Random(seed)
        for task in tasks:
            yield task.instruction
            yield from example_commands(task, generator, CORPUS_COMMANDS)
            yield f"FAIL {task.instruction.splitlines()[0].partition(': ')[2]}\n"


def make_task(instance: Instance) -> Task:
    """The task of an instance. Its payload, never shown to the agent, holds the fault."""
    package = instance.package
    site = test_environment(package) if package.runner == "pytest" else None
    env = {
        "PATH": PATH,
        "SWE_ROOT": ROOT,
        "SWE_PYTHON": python_path(),
        "SWE_FILE": instance.file,
        "SWE_FOCUS": json.dumps(instance.focus),
        "SWE_TESTS": json.dumps(instance.visible),
        "SWE_PATHS": json.dumps(package.paths),
        "SWE_RUNNER": package.runner,
        "SWE_SITE": SITE if site else "",
    }
    payload = {
        "package": package.key, "file": instance.file, "line": instance.line, "old": instance.old,
        "new": instance.new, "occurrence": instance.occurrence, "kind": instance.kind,
        "focus": instance.focus, "marked": instance.marked,
        "fail_to_pass": instance.fail_to_pass, "pass_to_pass": instance.pass_to_pass,
    }  # fmt: skip
    return Task(
        id=instance.id, domain="swe", instruction=instruction(instance),
        sandbox=replace(base_spec(site), env=env), split=package.split, payload=payload,
        tags={"package": package.name, "kind": instance.kind},
    )  # fmt: skip


_FIELDS: Mapping[str, Callable[[Instance], str]] = {
    "packages": lambda instance: instance.package.name,
    "kinds": lambda instance: instance.kind,
    "ids": lambda instance: instance.id,
}


OPTIONS = frozenset([*_FIELDS, "limit", "seed", "rows"])


def _select(instances: list[Instance], options: Mapping[str, Any]) -> list[Instance]:
    for key in options:
        if key not in OPTIONS:
            near = get_close_matches(key, sorted(OPTIONS), 1, cutoff=0.0)
            raise UsageError(f"the domain swe has no option {key!r}; did you mean {near[0]!r}?")
    for key, field in _FIELDS.items():
        wanted = options.get(key)
        if not wanted:
            continue
        unknown = set(wanted) - {field(instance) for instance in load_instances()}
        if unknown:
            raise UsageError(f"no shipped instance has the {key} {', '.join(sorted(unknown))}")
        instances = [instance for instance in instances if field(instance) in wanted]
    if options.get("seed") is not None:
        instances = list(instances)
        random.Random(int(options["seed"])).shuffle(instances)
    rows = options.get("rows")
    if rows is not None:
        if int(rows) < 1:
            raise InstanceError(f"rows must be at least 1, not {rows}")
        instances = [shown for i in instances if (shown := narrowed(i, int(rows))) is not None]
    limit = options.get("limit")
    if limit is not None and int(limit) < 1:
        raise InstanceError(f"limit must be at least 1, not {limit}")
    return instances[: int(limit)] if limit is not None else instances


@lru_cache(maxsize=256)
def _repository(instance_id: str) -> Repository:
    return build_repository(find_instance(instance_id).faulty_files())


@lru_cache(maxsize=32)
def _working_tree(instance_id: str) -> bytes:
    instance = find_instance(instance_id)
    return pack_tree(
        instance.faulty_files(), uncompiled=frozenset({instance.file}), repository=_repository(instance_id)
    )
