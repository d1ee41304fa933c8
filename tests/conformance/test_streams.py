"""Large files and archives travel piece by piece."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
from collections.abc import AsyncIterator

import pytest

from orchard_core.env import Sandbox, SandboxFileError

MIB = 1 << 20


async def pieces(count: int, failing: bool = False) -> AsyncIterator[bytes]:
    for number in range(count):
        yield bytes([number % 256]) * MIB
    if failing:
        raise ZeroDivisionError


async def test_a_file_is_written_and_read_in_pieces(sandbox: Sandbox) -> None:
    await sandbox.write_stream("/tmp/large", pieces(32), mode=0o640)
    digest = hashlib.sha256()
    largest = 0
    async for data in sandbox.read_stream("/tmp/large"):
        digest.update(data)
        largest = max(largest, len(data))
    expected = hashlib.sha256(b"".join([data async for data in pieces(32)]))
    assert digest.hexdigest() == expected.hexdigest()
    assert largest < MIB
    assert (await sandbox.list_files("/tmp/large"))[0].mode == 0o640


async def test_reading_begins_at_an_offset(sandbox: Sandbox) -> None:
    await sandbox.write_file("/tmp/f", b"0123456789")
    assert b"".join([data async for data in sandbox.read_stream("/tmp/f", offset=7)]) == b"789"


async def test_a_source_that_fails_leaves_the_old_file(sandbox: Sandbox) -> None:
    await sandbox.write_file("/tmp/f", b"old")
    with pytest.raises(ZeroDivisionError):
        await sandbox.write_stream("/tmp/f", pieces(2, failing=True))
    assert await sandbox.read_file("/tmp/f") == b"old"
    assert [info.path for info in await sandbox.list_files("/tmp") if "part" in info.path] == []


async def test_two_writers_of_one_file_leave_one_of_their_files(sandbox: Sandbox) -> None:
    async def write(letter: bytes) -> None:
        async def source() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield letter * 100_000

        await sandbox.write_stream("/tmp/f", source())

    await asyncio.gather(write(b"a"), write(b"b"))
    assert await sandbox.read_file("/tmp/f") in (b"a" * 2_000_000, b"b" * 2_000_000)


async def test_a_reader_that_stops_early_leaves_the_sandbox_usable(sandbox: Sandbox) -> None:
    await sandbox.write_stream("/tmp/large", pieces(8))
    async for _data in sandbox.read_stream("/tmp/large"):
        break
    assert (await sandbox.exec("echo on")).text == "on\n"


async def test_an_archive_comes_and_goes(sandbox: Sandbox) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        member = tarfile.TarInfo("sub/run")
        member.size, member.mode = 3, 0o755
        tar.addfile(member, io.BytesIO(b"abc"))
        link = tarfile.TarInfo("sub/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/absolute"
        tar.addfile(link)

    async def source() -> AsyncIterator[bytes]:
        yield made.getvalue()

    await sandbox.upload_archive(source(), "/tmp/tree")
    got = io.BytesIO(b"".join([data async for data in sandbox.download_archive("/tmp/tree")]))
    with tarfile.open(fileobj=got) as tar:
        assert tar.getmember("./sub/run").mode == 0o755
        assert tar.getmember("./sub/link").linkname == "/absolute"


async def test_a_folder_that_is_missing_is_named(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxFileError, match="/nowhere"):
        _ = [data async for data in sandbox.download_archive("/nowhere")]
