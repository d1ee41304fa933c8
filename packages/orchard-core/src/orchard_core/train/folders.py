"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchard_core.engine.saving import saving

_STEP = "step-"


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside `folder` that takes its name once the block succeeds.

    A folder already there is replaced; when the block raises, it stays and nothing is left over.
    """
    with saving(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        draft.chmod(0o755)
        with saving(folder):
            yield draft
            _sync(draft)
        if folder.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
            os.rename(folder, old / "old")
            os.rename(draft, folder)
            shutil.rmtree(old)
        else:
            os.rename(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _sync(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def step_folder(parent: Path, step: int) -> Path:
    """Where the checkpoint after `step` optimiser steps lies."""
    return parent / f"{_STEP}{step:08d}"


def step_folders(parent: Path) -> list[Path]:
    """Complete checkpoints, oldest first; drafts of a killed process begin with a dot."""
    return sorted(path for path in parent.glob(f"{_STEP}*") if path.is_dir())


def keep_newest(parent: Path, count: int) -> None:
    """Remove all but the newest `count` checkpoints, and the drafts of killed processes."""
    old = step_folders(parent)[:-count] if count else []
    for path in [*old, *parent.glob(f".{_STEP}*")]:
        shutil.rmtree(path, ignore_errors=True)
