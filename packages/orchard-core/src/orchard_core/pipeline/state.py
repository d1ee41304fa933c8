"""Which stages of a run are done, and the figures they reported: one small JSON file, written atomically."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from orchard_core.errors import UsageError

STATE_FILE = "state.json"


class RunStateError(UsageError):
    """The run folder belongs to another recipe or cannot be used."""


class _Record(BaseModel):
    """What the file holds."""

    model_config = ConfigDict(extra="forbid")

    fingerprint: str
    stages: dict[str, dict[str, Any]]


class RunState:
    """The record of a run folder.

    A stage is recorded only after everything it wrote is durable, so a run that was killed at any
    point repeats at most the unfinished part of one stage.
    """

    def __init__(self, run_dir: Path, fingerprint: str) -> None:
        """Open or begin the run. Raises RunStateError if the folder holds a run of another recipe."""
        self.path = run_dir / STATE_FILE
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunStateError(f"the run folder {run_dir} can't be made: {error.strerror}") from error
        self._record = self._read() or _Record(fingerprint=fingerprint, stages={})
        if self._record.fingerprint != fingerprint:
            raise RunStateError(
                f"{run_dir} holds a run of a different recipe; remove it or choose another run_dir"
            )

    def _read(self) -> _Record | None:
        if not self.path.exists():
            return None
        try:
            return _Record.model_validate_json(self.path.read_bytes())
        except ValidationError as error:
            raise RunStateError(f"{self.path} is damaged; remove the run folder to begin anew") from error

    def result(self, stage: str) -> Mapping[str, Any] | None:
        """What a finished stage reported; None if it has not finished."""
        found = self._record.stages.get(stage)
        return dict(found) if found is not None else None

    def finish(self, stage: str, result: Mapping[str, Any]) -> None:
        """Record a stage as done, durably."""
        self._record.stages[stage] = dict(result)
        data = {"fingerprint": self._record.fingerprint, "stages": self._record.stages}
        write_atomically(
            self.path, orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY)
        )


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a crash leaves the old or the new content, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
