"""The shipped list keeps its promises."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest

from orchard_core.domain.protocol import Domain
from orchard_core.env.handle import Provider
from orchard_core.errors import UsageError
from orchard_swe.domain import SweDomain
from orchard_swe.errors import InstanceError
from orchard_swe.instances import find_instance, load_instances
from orchard_swe.miner.localise import FOCUS_LINES, MARKED_LINES
from orchard_swe.mutation import candidate_edits
from orchard_swe.validate import validate

INSTANCES = load_instances()


def test_there_are_enough_instances_of_enough_packages_in_both_splits() -> None:
    train, held_out = load_instances("train"), load_instances("held_out")
    assert len(train) + len(held_out) == len(INSTANCES) >= 800
    assert len(held_out) >= 150
    assert len({i.package.name for i in held_out}) >= 3
    assert len({i.package.name for i in INSTANCES}) >= 8


def test_no_package_is_in_both_splits() -> None:
    names = {split: {i.package.name for i in load_instances(split)} for split in ("train", "held_out")}
    assert not names["train"] & names["held_out"]


def test_ids_are_unique_and_faults_are_too() -> None:
    assert len({i.id for i in INSTANCES}) == len(INSTANCES)
    faults = Counter((i.package.key, i.file, i.fault) for i in INSTANCES)
    assert max(faults.values()) == 1


def test_every_package_is_pinned_and_has_a_licence() -> None:
    for package in {i.package for i in INSTANCES}:
        assert re.fullmatch(r"[0-9a-f]{64}", package.sha256)
        assert package.licence not in ("", "unknown")


def test_every_focus_holds_the_fault_and_is_bounded() -> None:
    for instance in INSTANCES:
        assert instance.line in instance.focus
        assert len(instance.focus) <= FOCUS_LINES
        assert list(instance.focus) == sorted(instance.focus)
        assert set(instance.marked) <= set(instance.focus)
        assert len(instance.marked) <= MARKED_LINES


def test_tests_are_named_and_no_test_is_on_both_sides() -> None:
    for instance in INSTANCES:
        assert instance.fail_to_pass
        assert not set(instance.f2p) & set(instance.p2p)


def test_repair_and_fault_are_not_empty_and_differ() -> None:
    for instance in INSTANCES:
        assert instance.old
        assert instance.new
        assert instance.old != instance.new


def test_unknown_ids_and_options_are_named() -> None:
    with pytest.raises(InstanceError, match="no instance 'nothing-1'"):
        find_instance("nothing-1")
    with pytest.raises(UsageError, match="packages nothing"):
        SweDomain().tasks("train", {"packages": ["nothing"]})
    with pytest.raises(InstanceError, match="at least 1"):
        SweDomain().tasks("train", {"limit": 0})


def test_the_domain_fits_the_protocol() -> None:
    assert isinstance(SweDomain(), Domain)


@pytest.mark.needs_index
@pytest.mark.slow
async def test_a_sample_of_several_packages_is_valid_in_real_sandboxes(provider: Provider) -> None:
    generator = random.Random(7)
    names = generator.sample(sorted({i.package.name for i in INSTANCES}), 4)
    sample = [
        generator.choice([i for i in INSTANCES if i.package.name == name]) for name in names for _ in range(2)
    ]
    assert [r.problems for r in await validate(sample, provider) if not r.ok] == []


@pytest.mark.needs_index
def test_fewer_rows_keep_the_fault_in_sight_and_drop_the_other_tasks() -> None:
    name = INSTANCES[0].package.name
    options = {"packages": [name]}
    whole = SweDomain().tasks("train", options)
    few = SweDomain().tasks("train", {**options, "rows": 4})
    assert 0 < len(few) < len(whole)
    for task in few:
        assert len(task.payload["focus"]) <= 4
        assert task.payload["line"] in task.payload["focus"]
        assert len(task.instruction.rstrip("\n").split("\n")) == 2 + len(task.payload["focus"])


@pytest.mark.needs_index
def test_tasks_keep_their_order_and_issues_are_short() -> None:
    name = INSTANCES[0].package.name
    split = INSTANCES[0].package.split
    tasks = SweDomain().tasks(split, {"packages": [name], "limit": 5, "seed": 3})
    assert [t.id for t in tasks] == [
        t.id for t in SweDomain().tasks(split, {"packages": [name], "limit": 5, "seed": 3})
    ]
    for task in tasks:
        assert len(task.instruction) < 1600
        row = task.payload["focus"].index(task.payload["line"]) + 1
        line = next(r for r in task.instruction.split("\n") if r[1:].startswith(f"{row}|"))
        assert isinstance(candidate_edits(line), list)
