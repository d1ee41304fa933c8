"""The synchronous facade does what the async core does."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchard_core.env import SandboxFileError, SandboxSpec, SyncProvider, open_provider


def test_everything_without_await(tmp_path: Path) -> None:
    seen: list[tuple[str, bytes]] = []
    with SyncProvider(open_provider("bubblewrap")) as provider, provider.create(SandboxSpec()) as sandbox:
        assert provider.name == "bubblewrap"
        assert sandbox.spec == SandboxSpec()
        result = sandbox.exec(
            "cat; pwd", stdin=b"in ", on_output=lambda stream, data: seen.append((stream, data))
        )
        assert result.text == "in /workspace\n"
        assert b"".join(data for _, data in seen) == result.stdout
        sandbox.write_file("d/f", b"data")
        assert sandbox.read_file("d/f") == b"data"
        assert [info.path for info in sandbox.list_files("d")] == ["/workspace/d/f"]
        sandbox.download_tree("d", tmp_path / "d")
        sandbox.upload_tree(tmp_path / "d", "e")
        assert sandbox.read_file("e/f") == b"data"
        sandbox.tunnel(8125, ("127.0.0.1", 1))
        with pytest.raises(SandboxFileError):
            sandbox.read_file("missing")


def test_jobs_and_the_lease_without_await() -> None:
    with SyncProvider(open_provider("bubblewrap")) as provider, provider.create(SandboxSpec()) as sandbox:
        assert sandbox.start("cat; sleep 100", exec_id="job", stdin=True).state == "running"
        sandbox.send_input("job", b"typed", last=True)
        while sandbox.job("job").stdout_bytes < 5:
            pass
        assert [job.id for job in sandbox.jobs()] == ["job"]
        sandbox.signal("job", 0)
        sandbox.cancel("job")
        result = sandbox.attach("job")
        assert (result.stdout, result.cancelled) == (b"typed", True)
        sandbox.write_file("f", b"old\n")
        patch = b"--- a/f\n+++ b/f\n@@ -1 +1 @@\n-old\n+new\n"
        assert sandbox.apply_patch(patch).ok
        assert sandbox.read_file("f") == b"new\n"
        assert sandbox.renew(ttl_s=50).ttl_left_s <= 50
        assert sandbox.lease().idle_left_s is None


def test_sandboxes_end_with_their_provider() -> None:
    with SyncProvider(open_provider("bubblewrap")) as provider:
        sandbox = provider.create(SandboxSpec())
        assert sandbox.exec(["true"]).ok
    assert sandbox.id.startswith("orchard-")
