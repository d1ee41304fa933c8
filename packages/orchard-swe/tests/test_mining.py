"""A tiny package is mined end to end in real sandboxes, and its instances are graded both ways."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from orchard_core.env.handle import Provider
from orchard_core.errors import UsageError
from orchard_swe import domain as domain_module
from orchard_swe.domain import SweDomain, make_task
from orchard_swe.errors import BaselineError, ChecksumError, LayoutError, UnsafeArchiveError
from orchard_swe.grading import grade_patch
from orchard_swe.instances import Instance, file_diff, gold_patch, to_swebench
from orchard_swe.miner.mine import MineOptions, mine
from orchard_swe.miner.output import read_folder, write_list
from orchard_swe.mutation import apply_edit
from orchard_swe.prompt import instruction
from orchard_swe.sdist import fetch_sdist, read_sdist
from orchard_swe.validate import validate

from .conftest import PYTEST_TESTS, SOURCE, UNIT_TESTS, write_sdist  # type: ignore[import-not-found]

SMALL = MineOptions(limit=4, attempts=40)


async def mined(provider: Provider) -> list[Instance]:
    return (await mine("tinysum", "1.0", provider, SMALL)).instances


def diff(path: str, before: str, after: str) -> bytes:
    return file_diff(path, before, after).encode()


async def test_mined_instances_are_valid_and_survive_being_written(
    tiny: Path, provider: Provider, tmp_path: Path
) -> None:
    instances = await mined(provider)
    assert len(instances) == 4
    assert all(result.ok for result in await validate(instances, provider))
    write_list(tmp_path / "list", instances)
    assert read_folder(tmp_path / "list") == instances


async def test_mining_twice_gives_the_same_instances(tiny: Path, provider: Provider) -> None:
    assert await mined(provider) == await mined(provider)


async def test_the_issue_shows_the_faulty_line_and_nothing_of_the_repair(
    tiny: Path, provider: Provider
) -> None:
    for instance in await mined(provider):
        faulty = apply_edit(SOURCE, instance.fault)
        text = instruction(instance)
        row = instance.focus.index(instance.line) + 1
        assert f"{row}|{faulty.split(chr(10))[instance.line - 1]}" in text
        assert instance.line in instance.focus
        assert set(instance.marked) <= set(instance.focus)
        assert SOURCE.split("\n")[instance.line - 1] not in text.split("\n")


async def test_the_swebench_record_has_the_fields_and_a_patch_that_repairs(
    tiny: Path, provider: Provider
) -> None:
    instance = (await mined(provider))[0]
    record = to_swebench(instance, instruction(instance), "0" * 40)
    assert record["patch"] == gold_patch(instance)
    assert {"repo", "base_commit", "FAIL_TO_PASS", "PASS_TO_PASS", "test_patch", "version"} <= set(record)


async def test_an_agents_session_from_prepare_to_reward(
    tiny: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = (await mined(provider))[0]
    monkeypatch.setattr(domain_module, "find_instance", lambda _: instance)
    swe = SweDomain()
    task = make_task(replace(instance, id="session-1"))
    async with await provider.create(task.sandbox) as sandbox:
        await swe.prepare(task, sandbox)
        failing = await sandbox.exec("t")
        assert (failing.exit_code, failing.text[:5]) == (1, "FAIL ")
        wrong = await sandbox.exec("sub 1 nowhere x")
        assert (wrong.exit_code, wrong.text) == (1, "not on row 1: nowhere\n")
        clean = await swe.collect(task, sandbox)
        assert (await swe.grade(task, clean, provider)).verdict == "failure"
        row = str(instance.focus.index(instance.line) + 1)
        edit = ["sub", row, instance.old, instance.new, str(instance.occurrence)]
        assert (await sandbox.exec(edit)).exit_code == 0
        assert (await sandbox.exec("t")).text == "OK\n"
        assert (await sandbox.exec("undo && t")).exit_code == 1
        shown = await sandbox.exec(f"show {instance.line}")
        assert shown.text.startswith(f"{instance.line}|")
        assert (await sandbox.exec(edit)).exit_code == 0
        assert (await sandbox.exec("git add -A && git commit -qm done && rm -rf tests")).exit_code == 0
        result = await swe.collect(task, sandbox)
        assert (await sandbox.exec("submit")).text == "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n"
    reward = await swe.grade(task, result, provider)
    assert (reward.verdict, reward.value) == ("success", 1.0)


async def test_a_same_size_edit_within_a_second_is_not_hidden_by_bytecode(
    tiny: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = next(i for i in await mined(provider))
    monkeypatch.setattr(domain_module, "find_instance", lambda _: instance)
    task = make_task(replace(instance, id="session-2"))
    async with await provider.create(task.sandbox) as sandbox:
        await SweDomain().prepare(task, sandbox)
        path, row = instance.file, instance.focus.index(instance.line) + 1
        done = await sandbox.exec(
            f"t; cp {path} /tmp/faulty; sub {row} '{instance.old}' '{instance.new}' {instance.occurrence};"
            f" t; cp /tmp/faulty {path}; t"
        )
    verdicts = [line.split()[0] for line in done.text.splitlines() if line.startswith(("OK", "FAIL"))]
    assert verdicts == ["FAIL", "OK", "FAIL"]


@pytest.mark.parametrize("attack", ["exit", "print", "hang"])
async def test_code_that_ends_or_hangs_the_run_fails(
    tiny: Path, provider: Provider, attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchard_swe.grading.GRADE_TIMEOUT_S", 2.0)
    instance = (await mined(provider))[0]
    code = {
        "exit": "import os; os._exit(0)",
        "print": "import os; os.write(1, b'OK'); os._exit(0)",
        "hang": "while True: pass",
    }[attack]
    faulty = apply_edit(SOURCE, instance.fault)
    reward = await grade_patch(instance, diff("tinysum.py", faulty, SOURCE + code + "\n"), provider)
    assert reward.verdict == "failure"
    assert reward.parts["f2p"] == 0.0


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("conftest.py", "collect_ignore_glob = ['*']\n"),
        ("sitecustomize.py", "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\n"),
        ("tests/__init__.py", "import unittest\nunittest.TestCase.assertEqual = lambda *a: None\n"),
    ],
)
async def test_files_that_change_how_tests_run_do_not_count(
    tiny: Path, provider: Provider, path: str, text: str
) -> None:
    instance = (await mined(provider))[0]
    reward = await grade_patch(
        instance, diff(path, "", text).replace(b"--- a", b"new file mode 100644\n--- a"), provider
    )
    assert reward.verdict == "failure"


async def test_weakened_tests_do_not_count(tiny: Path, provider: Provider) -> None:
    instance = (await mined(provider))[0]
    weak = UNIT_TESTS.replace("self.assertEqual(", "print(")
    reward = await grade_patch(instance, diff("tests/test_tiny.py", UNIT_TESTS, weak), provider)
    assert reward.verdict == "failure"


async def test_a_repair_that_breaks_something_else_fails_in_part(tiny: Path, provider: Provider) -> None:
    instance = next(i for i in await mined(provider) if i.p2p)
    broken = SOURCE.replace("return result", "return result + 1").replace("return best", "return ''")
    broken = broken.replace("return value", "return None")
    reward = await grade_patch(
        instance, diff("tinysum.py", apply_edit(SOURCE, instance.fault), broken), provider
    )
    assert reward.verdict == "failure"
    assert reward.parts["p2p"] < 1.0


@pytest.mark.needs_index
async def test_a_pytest_package_is_mined_too(cache: Path, provider: Provider) -> None:
    write_sdist(
        cache, "tinysum", "1.0", {"src/tinysum/__init__.py": SOURCE, "tests/test_tiny.py": PYTEST_TESTS}
    )
    instances = await mined(provider)
    assert {i.package.runner for i in instances} == {"pytest"}
    assert all(result.ok for result in await validate(instances[:2], provider))


async def test_a_package_without_tests_is_named(cache: Path, provider: Provider) -> None:
    write_sdist(cache, "bare", "1.0", {"bare.py": SOURCE})
    with pytest.raises(LayoutError, match=r"bare 1\.0 ships no tests"):
        await mine("bare", "1.0", provider, SMALL)


async def test_a_package_without_source_is_named(cache: Path, provider: Provider) -> None:
    write_sdist(cache, "empty", "1.0", {"tests/test_tiny.py": UNIT_TESTS})
    with pytest.raises(LayoutError, match=r"empty 1\.0 has no importable"):
        await mine("empty", "1.0", provider, SMALL)


@pytest.mark.needs_index
async def test_tests_that_fail_on_the_clean_package_are_named(cache: Path, provider: Provider) -> None:
    tests = UNIT_TESTS.replace("import clamp", "import missing, clamp")
    write_sdist(cache, "tinysum", "1.0", {"tinysum.py": SOURCE, "tests/test_tiny.py": tests})
    with pytest.raises(BaselineError, match=r"fewer than 3 tests of tinysum 1\.0 pass"):
        await mine("tinysum", "1.0", provider, SMALL)


def test_unsafe_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "evil.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("evil-1.0/../../etc/passwd"))
    with pytest.raises(UnsafeArchiveError, match="unsafe path"):
        read_sdist(path)


def test_a_file_with_another_checksum_is_refused(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def copy(name: str, version: str, folder: Path) -> Path:
        target = folder / tiny.name
        target.write_bytes(tiny.read_bytes())
        return target

    monkeypatch.setattr("orchard_swe.sdist._download", copy)
    with pytest.raises(ChecksumError, match="another file than the list names"):
        fetch_sdist("tinysum", "1.0", "0" * 64)


@pytest.mark.needs_index
def test_an_unknown_version_is_one_sentence(cache: Path) -> None:
    with pytest.raises(UsageError, match=r"no usable source distribution of cachetools 0\.0\.999"):
        fetch_sdist("cachetools", "0.0.999")
