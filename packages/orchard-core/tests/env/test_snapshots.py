"""Snapshots kept by content, restored and forked, over real sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchard_core.env import Provider, Sandbox, SandboxError, SandboxSpec, open_provider
from orchard_core.env.snapshots import (
    SnapshotMismatchError,
    SnapshotStore,
    UnknownSnapshotError,
    fork,
)
from orchard_core.errors import UsageError

WORK = "echo one > one; mkdir d; ln -s ../one d/link; head -c 100000 /dev/urandom > d/big; printf x > \"$(printf 'b\\377d')\""
LOOK = "find . | LC_ALL=C sort; cat one; sha256sum d/big; readlink d/link"


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    made = open_provider("bubblewrap")
    yield made
    await made.close()


@pytest.fixture
async def worked(provider: Provider) -> Sandbox:
    sandbox = await provider.create(SandboxSpec(env={"SET": "1"}))
    assert (await sandbox.exec(WORK)).ok
    return sandbox


async def look(sandbox: Sandbox) -> bytes:
    return (await sandbox.exec(LOOK)).stdout


async def test_a_snapshot_outlives_its_sandbox(provider: Provider, worked: Sandbox, tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    want = await look(worked)
    saved = await store.save(worked)
    await worked.close()
    restored = await SnapshotStore(str(tmp_path)).restore(saved, provider)
    assert await look(restored) == want
    assert (await restored.exec("echo $SET")).text == "1\n"
    assert store.ids() == [saved]


async def test_equal_files_are_kept_once_and_have_one_id(worked: Sandbox, tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    first = await store.save(worked)
    assert await store.save(worked) == first
    await worked.exec("cp d/big d/again; touch d")
    second = await store.save(worked)
    assert second != first
    assert store.ids() == sorted([first, second])
    assert len([path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]) == 3


async def test_each_turn_can_be_gone_back_to(provider: Provider, tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    sandbox = await provider.create(SandboxSpec())
    turns = []
    for turn in ("echo 1 > f", "echo 2 > f; echo x > g", "rm f g"):
        await sandbox.exec(turn)
        turns.append((await store.save(sandbox), (await sandbox.exec("grep . f g; ls")).stdout))
    for saved, want in reversed(turns):
        back = await store.restore(saved, provider)
        assert (await back.exec("grep . f g; ls")).stdout == want


async def test_forks_are_equal_and_then_independent(provider: Provider, worked: Sandbox) -> None:
    want = await look(worked)
    forks = await fork(worked, provider, 3)
    assert [await look(one) for one in forks] == [want] * 3
    await asyncio.gather(*(one.exec(f"echo {n} > one") for n, one in enumerate(forks)))
    assert [await one.read_file("one") for one in (worked, *forks)] == [b"one\n", b"0\n", b"1\n", b"2\n"]
    with pytest.raises(UsageError, match="at least one"):
        await fork(worked, provider, 0)


async def test_a_restored_sandbox_that_differs_is_found_out(worked: Sandbox, tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path))
    saved = store.manifest(await store.save(worked))
    await worked.exec("chmod 600 d/big")
    changed = store.manifest(await store.save(worked))
    with pytest.raises(SnapshotMismatchError, match="d/big differs"):
        saved.check(changed)
    await worked.exec("chmod 644 d/big; echo more > d/more")
    with pytest.raises(SnapshotMismatchError, match="d/more should not be"):
        saved.check(store.manifest(await store.save(worked)))


async def test_an_unknown_and_a_damaged_snapshot_are_named(
    provider: Provider, worked: Sandbox, tmp_path: Path
) -> None:
    store = SnapshotStore(str(tmp_path))
    with pytest.raises(UnknownSnapshotError, match="abc"):
        await store.restore("abc", provider)
    with pytest.raises(UnknownSnapshotError, match="no snapshot's id"):
        await store.restore("../../etc/passwd", provider)
    saved = await store.save(worked)
    for path in (tmp_path / "blobs").rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(SandboxError, match="lacks the blob"):
        await store.restore(saved, provider)
    (kept,) = [path for path in (tmp_path / "snapshots").rglob("*") if path.is_file()]
    kept.write_bytes(kept.read_bytes().replace(b'"mode"', b'"made"'))
    with pytest.raises(SandboxError, match="damaged"):
        await store.restore(saved, provider)


async def test_a_store_need_not_be_a_folder(provider: Provider, worked: Sandbox) -> None:
    store = SnapshotStore("memory://snapshots")
    restored = await store.restore(await store.save(worked), provider)
    assert await look(restored) == await look(worked)
