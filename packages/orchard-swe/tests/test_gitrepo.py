"""The repository that is built in memory is one that git accepts."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

from orchard_swe.gitrepo import build_repository
from orchard_swe.worktree import pack_tree

TREE = {
    "a.py": b"x = 1\n",
    "pkg/__init__.py": b"",
    "pkg/deep/er.py": b"y = 2\n",
    "pkg.py": b"z = 3\n",
    "data/\xc3\xa4.txt".encode("latin-1").decode(): b"\x00\xff",
}


def unpack(folder: Path) -> str:
    repository = build_repository(TREE)
    with tarfile.open(fileobj=io.BytesIO(pack_tree(TREE, repository=repository))) as tar:
        tar.extractall(folder, filter="data")
    return repository.commit


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_git_finds_one_sound_commit_and_a_clean_tree(tmp_path: Path) -> None:
    commit = unpack(tmp_path)
    assert git(tmp_path, "fsck", "--strict", "--full", "--unreachable") == ""
    assert git(tmp_path, "rev-list", "--all", "HEAD") == commit
    assert git(tmp_path, "status", "--porcelain") == ""
    assert git(tmp_path, "ls-files", "-z").split("\0")[:-1] == sorted(TREE, key=str.encode)


def test_a_change_is_seen_even_when_size_and_time_are_the_same(tmp_path: Path) -> None:
    unpack(tmp_path)
    (tmp_path / "a.py").write_bytes(b"x = 2\n")
    assert git(tmp_path, "diff", "--name-only") == "a.py"


def test_only_compiled_files_without_changes_have_bytecode() -> None:
    data = pack_tree({"a.py": b"x = 1\n", "b.py": b"y = 1\n", "c.py": b"(\n"}, uncompiled=frozenset({"b.py"}))
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        compiled = [name for name in tar.getnames() if name.endswith(".pyc")]
    assert [name.split("/")[-1].split(".")[0] for name in compiled] == ["a"]
