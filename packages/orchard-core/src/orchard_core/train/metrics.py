"""Metrics of a training run: one JSON line a step, and TensorBoard."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from orchard_core.errors import MissingExtraError

try:
    from torch.utils.tensorboard import SummaryWriter
except ImportError as error:
    raise MissingExtraError("tensorboard", "train") from error


class MetricsLogger:
    """Writes `metrics.jsonl` and TensorBoard events into a folder.

    With `resume_step` s, what an earlier process logged for steps after s is discarded, so that a
    resumed run leaves the same record as an uninterrupted one. Without it the record begins anew.
    """

    def __init__(self, folder: Path, resume_step: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "metrics.jsonl"
        _truncate(self.path, -1 if resume_step is None else resume_step)
        self._lines = self.path.open("a", encoding="utf-8")
        if resume_step is None:
            shutil.rmtree(folder / "tensorboard", ignore_errors=True)
        purge = None if resume_step is None else resume_step + 1
        self._board: Any = SummaryWriter(str(folder / "tensorboard"), purge_step=purge)

    def log(self, step: int, metrics: Mapping[str, float], prefix: str = "") -> None:
        """Record the metrics after a step; names get `prefix/` in front where one is given."""
        named = {f"{prefix}/{name}" if prefix else name: float(value) for name, value in metrics.items()}
        self._lines.write(json.dumps({"step": step, "time": time.time(), **named}) + "\n")
        self._lines.flush()
        for name, value in named.items():
            self._board.add_scalar(name, value, step)

    def close(self) -> None:
        self._lines.close()
        self._board.close()

    def __enter__(self) -> MetricsLogger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """All lines of a run's `metrics.jsonl`; a last line cut short by a kill is left out."""
    return [row for _, row in _rows(folder / "metrics.jsonl")]


def _rows(path: Path) -> list[tuple[str, dict[str, float]]]:
    if not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append((line, json.loads(line)))
        except json.JSONDecodeError:
            break
    return rows


def _truncate(path: Path, last_step: int) -> None:
    if not path.exists():
        return
    kept = [line for line, row in _rows(path) if row["step"] <= last_step]
    draft = path.with_suffix(".tmp")
    draft.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
    os.replace(draft, path)
