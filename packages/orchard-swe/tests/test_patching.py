"""Diffs are read, filtered and applied exactly."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard_swe.errors import PatchError
from orchard_swe.instances import file_diff
from orchard_swe.patching import apply_patches, filter_patches, parse_patch


def added(path: str, text: str = "x = 1\n", mode: str = "100644") -> bytes:
    body = "".join(f"+{line}\n" for line in text.splitlines())
    count = len(text.splitlines())
    return (
        f"diff --git a/{path} b/{path}\nnew file mode {mode}\nindex 0000000..1111111\n"
        f"--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{count} @@\n{body}"
    ).encode()


@pytest.mark.parametrize(
    "path",
    [
        "tests/test_a.py",
        "pkg/tests/helper.py",
        "test_new.py",
        "pkg/thing_test.py",
        "tests/data.json",
        "conftest.py",
        "pkg/conftest.py",
        "pytest.ini",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
        "sitecustomize.py",
        "usercustomize.py",
        "src/evil.pth",
        "pkg/__pycache__/a.cpython-311.pyc",
        ".git/config",
        ".gitattributes",
        "../outside.py",
        "/etc/passwd",
    ],
)
def test_changes_out_of_bounds_are_dropped(path: str) -> None:
    kept, reasons = filter_patches(parse_patch(added(path) + added("pkg/fine.py")))
    assert [patch.path for patch in kept] == ["pkg/fine.py"]
    assert len(reasons) == 1


def test_a_link_is_dropped() -> None:
    kept, reasons = filter_patches(parse_patch(added("pkg/link.py", "/etc/passwd", mode="120000")))
    assert kept == []
    assert list(reasons) == ["pkg/link.py"]


def test_deleting_a_test_is_dropped_and_deleting_a_source_counts() -> None:
    def deleted(path: str) -> bytes:
        return (
            f"diff --git a/{path} b/{path}\ndeleted file mode 100644\n--- a/{path}\n+++ /dev/null\n"
            "@@ -1 +0,0 @@\n-x = 1\n"
        ).encode()

    files = {"pkg/a.py": b"x = 1\n", "tests/test_a.py": b"x = 1\n"}
    kept, _ = filter_patches(parse_patch(deleted("pkg/a.py") + deleted("tests/test_a.py")))
    assert apply_patches(files, kept) == {"tests/test_a.py": b"x = 1\n"}


def test_a_diff_that_does_not_fit_is_an_error() -> None:
    patches = parse_patch(file_diff("a.py", "x = 1\n", "x = 2\n").encode())
    with pytest.raises(PatchError, match="not what the diff says"):
        apply_patches({"a.py": b"y = 1\n"}, patches)
    with pytest.raises(PatchError, match="no file"):
        apply_patches({}, patches)
    with pytest.raises(PatchError, match="there already"):
        apply_patches({"pkg/a.py": b""}, parse_patch(added("pkg/a.py")))


def test_garbage_is_an_error_or_nothing() -> None:
    assert parse_patch(b"hello\n") == []
    with pytest.raises(PatchError):
        parse_patch(b"diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n*x\n")
    with pytest.raises(PatchError):
        parse_patch(b"diff --git \xff\xfe")


TEXTS = st.lists(st.sampled_from(["a\n", "b\n", "c\n", "\n", "-- x\n", "+y\n"]), max_size=12).map("".join)


@given(TEXTS, TEXTS, st.booleans())
def test_a_unified_diff_applies_to_what_it_was_made_from(before: str, after: str, end: bool) -> None:
    after = after if end else after.rstrip("\n")
    patches = parse_patch(file_diff("a.py", before, after).encode())
    assert apply_patches({"a.py": before.encode()}, patches)["a.py"] == after.encode()


def test_what_git_writes_is_read(tmp_path: Path) -> None:
    def git(*words: str) -> bytes:
        return subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        ).stdout

    before = {"a.py": b"1\n2\n3\n" * 10, "gone.py": b"x\n", "end.py": b"no newline"}
    after = {
        "a.py": b"1\n2\n3\n" * 4 + b"new\n" + b"1\n2\n3\n" * 6,
        "end.py": b"newline\n",
        "new.py": b"n\n",
        "empty.py": b"",
    }
    git("init", "-q")
    for path, body in before.items():
        (tmp_path / path).write_bytes(body)
    git("add", "-A")
    git("commit", "-qm", "x")
    (tmp_path / "gone.py").unlink()
    for path, body in after.items():
        (tmp_path / path).write_bytes(body)
    git("add", "-AN")
    assert apply_patches(before, parse_patch(git("diff", "--no-renames", "HEAD"))) == after
