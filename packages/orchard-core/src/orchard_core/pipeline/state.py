"""Which stages of a run are done, and the figures they reported: one small JSON file, written atomically."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from orchard_core.errors import UsageError

STATE_FILE = "state.json"


class RunStateError(UsageError):
    """The run folder belongs to another recipe or cannot be used."""


class RunState:
    """The record of a run folder.

    A stage is recorded only after everything it wrote is durable, so a run that was killed at any
    point repeats at most the unfinished part of one stage.
    """

    def __init__(self, run_dir: Path, fingerprint: str) -> None:
        """Open or begin the run. Raises RunStateError if the folder holds a run of another recipe."""
        self.path = run_dir / STATE_FILE
        self._data: dict[str, Any] = {"fingerprint": fingerprint, "stages": {}}
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunStateError(f"the run folder {run_dir} can't be made: {error.strerror}") from error
        if self.path.exists():
            try:
                self._data = orjson.loads(self.path.read_bytes())
            except orjson.JSONDecodeError as error:
                raise RunStateError(
                    f"{self.path} is damaged ({error}); remove the run folder to begin anew"
                ) from error
            if self._data.get("fingerprint") != fingerprint:
                raise RunStateError(
                    f"{run_dir} holds a run of a different recipe; remove it or choose another run_dir"
                )

    def result(self, stage: str) -> Mapping[str, Any] | None:
        """What a finished stage reported; None if it has not finished."""
        found = self._data["stages"].get(stage)
        return dict(found) if found is not None else None

    def finish(self, stage: str, result: Mapping[str, Any]) -> None:
        """Record a stage as done, durably."""
        self._data["stages"][stage] = dict(result)
        write_atomically(
            self.path, orjson.dumps(self._data, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)
        )


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old or the new content, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
