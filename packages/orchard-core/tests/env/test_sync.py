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


def test_sandboxes_end_with_their_provider() -> None:
    with SyncProvider(open_provider("bubblewrap")) as provider:
        sandbox = provider.create(SandboxSpec())
        assert sandbox.exec(["true"]).ok
    assert sandbox.id.startswith("orchard-")
