"""A cache folder is made once, whole or not at all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from orchard_core.harness.cache import cache_root, cached_folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHARD_CACHE", str(tmp_path / "cache"))


def test_racing_builders_build_once() -> None:
    built: list[Path] = []
    begin = threading.Barrier(4)

    def build(folder: Path) -> None:
        built.append(folder)
        (folder / "file").write_text("whole")

    def race() -> None:
        begin.wait()
        assert (cached_folder("thing", build) / "file").read_text() == "whole"

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1


def test_a_failed_build_leaves_nothing_and_can_be_tried_again() -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cached_folder("thing", fail)
    assert not (cache_root() / "harness" / "thing").exists()
    assert cached_folder("thing", lambda folder: None).is_dir()
