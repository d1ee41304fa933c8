"""What a run shows while it works: progress bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

log = logging.getLogger(__name__)


class Bar(Protocol):
    """The progress of one stage."""

    def advance(self, amount: int = 1) -> None: ...

    def update(self, done: int, total: int) -> None: ...


class ProgressDisplay:
    """Shows one bar a stage. Without a terminal it writes a line every `interval_s` seconds."""

    def __init__(self, console: Console | None = None, interval_s: float = 15.0) -> None:
        self.console = console or Console(stderr=True)
        self._interval_s = interval_s

    @contextmanager
    def track(self, name: str, total: int) -> Iterator[Bar]:
        if not self.console.is_terminal:
            bar = _Lines(self.console, name, total, self._interval_s)
            yield bar
            bar.finish()
            return
        columns = (
            TextColumn("{task.description:<22}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console) as progress:
            yield _Rich(progress, progress.add_task(name, total=total or None))


class _Rich:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def advance(self, amount: int = 1) -> None:
        self._progress.advance(self._task, amount)

    def update(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total)


class _Lines:
    def __init__(self, console: Console, name: str, total: int, interval_s: float) -> None:
        self._console, self._name, self._interval_s = console, name, interval_s
        self._done, self._total = 0, total
        self._began = self._said = time.monotonic()

    def advance(self, amount: int = 1) -> None:
        self.update(self._done + amount, self._total)

    def update(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        now = time.monotonic()
        if now - self._said >= self._interval_s:
            self._said = now
            self._say(now)

    def finish(self) -> None:
        self._say(time.monotonic())

    def _say(self, now: float) -> None:
        self._console.print(
            f"{self._name}: {self._done}/{self._total or '?'} in {now - self._began:.0f} s", highlight=False
        )
