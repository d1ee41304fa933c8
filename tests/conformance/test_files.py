"""Files and trees behave the same in every provider's sandboxes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from orchard_core.env import Sandbox, SandboxFileError
from orchard_core.errors import UsageError

ODD_NAMES = [
    "sp ace",
    "caf\u00e9",
    "-rf",
    "new\nline",
    "emoji\U0001f333",
    "quote'\"",
    os.fsdecode(b"latin\xe9"),
]


async def test_bytes_written_are_read_back(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 20_000
    await sandbox.write_file("deep/er/file.bin", data, mode=0o750)
    assert await sandbox.read_file("/workspace/deep/er/file.bin") == data
    [info] = await sandbox.list_files("deep/er")
    assert (info.path, info.kind, info.size, info.mode) == (
        "/workspace/deep/er/file.bin",
        "file",
        len(data),
        0o750,
    )


async def test_an_empty_file(sandbox: Sandbox) -> None:
    await sandbox.write_file("empty", b"")
    assert await sandbox.read_file("empty") == b""


async def test_writing_replaces_at_once_and_leaves_nothing_else(sandbox: Sandbox) -> None:
    await sandbox.write_file("f", b"old")
    await sandbox.exec("exec 3<f; (sleep 0.3; cat <&3 >seen) &")
    await sandbox.write_file("f", b"new!")
    result = await sandbox.exec(
        "while ! [ -s seen ]; do sleep 0.02; done; cat seen; rm seen; ls -A", timeout=20
    )
    assert result.text == "oldf\n"


async def test_writing_through_a_symlink_keeps_the_link(sandbox: Sandbox) -> None:
    await sandbox.exec("touch real; ln -s real link")
    await sandbox.write_file("link", b"data")
    assert (await sandbox.exec("readlink link; cat real")).text == "real\ndata"


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_odd_names(sandbox: Sandbox, name: str) -> None:
    await sandbox.write_file(f"d/{name}", b"x")
    assert [info.path for info in await sandbox.list_files("d")] == [f"/workspace/d/{name}"]
    assert await sandbox.read_file(f"d/{name}") == b"x"


async def test_listing_tells_kinds_and_links(sandbox: Sandbox) -> None:
    await sandbox.exec("mkdir d; touch f; ln -s /nowhere l; mkfifo p")
    kinds = {
        Path(info.path).name: (info.kind, info.link_target) for info in await sandbox.list_files("/workspace")
    }
    assert kinds == {
        "d": ("directory", None),
        "f": ("file", None),
        "l": ("symlink", "/nowhere"),
        "p": ("other", None),
    }


async def test_a_long_listing(sandbox: Sandbox) -> None:
    await sandbox.exec("mkdir many; cd many; seq 20000 | xargs touch")
    assert len(await sandbox.list_files("many")) == 20_000


@pytest.mark.parametrize("path", ["missing", "/workspace", "pipe", "/etc/passwd/x"])
async def test_reading_what_is_no_file_is_an_error_that_names_it(sandbox: Sandbox, path: str) -> None:
    await sandbox.exec("mkfifo pipe")
    with pytest.raises(SandboxFileError, match=path):
        await sandbox.read_file(path)


@pytest.mark.parametrize("path", ["/usr/x", "/etc/passwd", "/proc/x/y", "/workspace"])
async def test_writing_where_one_may_not_is_an_error(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(SandboxFileError):
        await sandbox.write_file(path, b"x" * 2_000_000)


async def test_listing_a_missing_directory_is_an_error(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxFileError, match="missing"):
        await sandbox.list_files("missing")


def _make_tree(root: Path) -> None:
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "run.sh").write_bytes(b"#!/bin/sh\necho ran\n")
    (root / "run.sh").chmod(0o755)
    (root / "secret").write_bytes(b"s" * 300_000)
    (root / "secret").chmod(0o600)
    for name in ODD_NAMES:
        (root / "sub" / name).write_bytes(name.encode("utf-8", "surrogateescape"))
    (root / "link").symlink_to("sub/caf\u00e9")
    (root / "dangling").symlink_to("nothing here")
    (root / "sub" / "up").symlink_to("../run.sh")
    os.link(root / "secret", root / "sub" / "hard")


def _describe(root: Path) -> dict[str, tuple[str, object]]:
    found: dict[str, tuple[str, object]] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[name] = ("dir", None)
        else:
            found[name] = (oct(stat.S_IMODE(path.stat().st_mode)), path.read_bytes())
    return found


async def test_a_tree_goes_in_and_comes_back_the_same(sandbox: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    _make_tree(source)
    await sandbox.upload_tree(source, "tree")
    assert (await sandbox.exec("./run.sh && ./sub/up", cwd="tree")).text == "ran\nran\n"
    await sandbox.download_tree("tree", tmp_path / "back")
    assert _describe(tmp_path / "back") == _describe(source)


async def test_uploading_keeps_absolute_links(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "abs").symlink_to("/usr/bin/env")
    await sandbox.upload_tree(tmp_path, "tree")
    assert (await sandbox.exec("readlink tree/abs")).text == "/usr/bin/env\n"


@pytest.mark.parametrize("link", ["/etc/passwd", "../../outside", "sub/../../outside"])
async def test_downloading_a_link_out_of_the_tree_is_refused(
    sandbox: Sandbox, tmp_path: Path, link: str
) -> None:
    await sandbox.exec(["sh", "-c", 'mkdir -p t/sub; echo x > t/ok; ln -s "$0" t/evil', link])
    with pytest.raises(SandboxFileError, match="evil"):
        await sandbox.download_tree("t", tmp_path / "back")
    assert os.listdir(tmp_path) == []


async def test_downloading_leaves_out_set_id_bits_and_special_files(sandbox: Sandbox, tmp_path: Path) -> None:
    await sandbox.exec("mkdir t; echo x > t/f; chmod 6755 t/f; mkfifo t/p")
    await sandbox.download_tree("t", tmp_path / "back")
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["f"]
    assert stat.S_IMODE((tmp_path / "back" / "f").stat().st_mode) == 0o755


async def test_downloading_into_a_used_folder_is_refused(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"")
    with pytest.raises(UsageError, match="empty directory"):
        await sandbox.download_tree("/workspace", tmp_path)


async def test_downloading_a_missing_tree_is_an_error(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(SandboxFileError, match="missing"):
        await sandbox.download_tree("missing", tmp_path / "back")


async def test_uploading_a_missing_tree_is_an_error(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        await sandbox.upload_tree(tmp_path / "nowhere", "t")


async def test_uploading_where_one_may_not_is_an_error(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 3_000_000)
    with pytest.raises(SandboxFileError):
        await sandbox.upload_tree(tmp_path, "/usr/x")
