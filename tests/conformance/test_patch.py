"""Patches apply as a whole and say by their exit code whether they did."""

from __future__ import annotations

from orchard_core.env import Sandbox

PATCH = b"""\
--- a/greeting
+++ b/greeting
@@ -1,2 +1,2 @@
 first
-hello
+good day
--- /dev/null
+++ b/sub/new
@@ -0,0 +1 @@
+made
"""


async def test_a_patch_changes_and_makes_files(sandbox: Sandbox) -> None:
    await sandbox.write_file("project/greeting", b"first\nhello\n")
    result = await sandbox.apply_patch(PATCH, cwd="project")
    assert result.ok, result.stderr
    assert await sandbox.read_file("project/greeting") == b"first\ngood day\n"
    assert await sandbox.read_file("project/sub/new") == b"made\n"


async def test_a_patch_that_does_not_fit_changes_nothing(sandbox: Sandbox) -> None:
    await sandbox.write_file("project/greeting", b"something else\n")
    result = await sandbox.apply_patch(PATCH, cwd="project")
    assert result.exit_code not in (0, 127)
    assert b"greeting" in result.stderr + result.stdout
    assert await sandbox.read_file("project/greeting") == b"something else\n"
    assert [info.path for info in await sandbox.list_files("project")] == ["/workspace/project/greeting"]
