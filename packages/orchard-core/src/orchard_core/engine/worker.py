"""The thread that runs the model, and how requests reach it and tokens leave it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch

from orchard_core.engine.errors import EngineError
from orchard_core.engine.protocol import TokenChunk
from orchard_core.engine.scheduler import Running, Scheduler

logger = logging.getLogger(__name__)

Event = TokenChunk | EngineError


class Sink:
    """Where one request's events go: a queue of the asyncio loop that asked."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[Event] = asyncio.Queue()
        self.emitted = 0


class Worker:
    """Runs a scheduler's steps in a thread of its own, so that the asyncio loop stays responsive."""

    def __init__(self, scheduler: Scheduler, *, threads: int, stream_interval: int) -> None:
        self.scheduler = scheduler
        self.weight_version = 0
        self._threads = threads
        self._interval = stream_interval
        self._condition = threading.Condition()
        self._added: list[Running] = []
        self._aborted: list[Running] = []
        self._tasks: list[tuple[Callable[[], None], Future[None]]] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="orchard-engine", daemon=True)
        self._thread.start()

    def submit(self, sequence: Running) -> None:
        """Queue a sequence whose owner is a Sink."""
        with self._condition:
            if self._closing:
                raise EngineError("the engine is closed")
            self._added.append(sequence)
            self._condition.notify()

    def abort(self, sequence: Running) -> None:
        """Free the place of a sequence; no effect if it has finished."""
        with self._condition:
            self._aborted.append(sequence)
            self._condition.notify()

    def between_requests(self, task: Callable[[], None]) -> Future[None]:
        """Run a task once the running sequences have finished; waiting ones stay queued."""
        future: Future[None] = Future()
        with self._condition:
            if self._closing:
                raise EngineError("the engine is closed")
            self._tasks.append((task, future))
            self._condition.notify()
        return future

    def close(self) -> None:
        """Stop after the current step; unfinished requests get an EngineError."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            with torch.inference_mode():
                while self._receive():
                    self._work()
        finally:
            with self._condition:
                self._closing = True
                self.scheduler.waiting.extend(self._added)
                tasks = self._tasks
            error = EngineError("the engine has stopped")
            self._fail_all(error)
            for _, future in tasks:
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)

    def _receive(self) -> bool:
        """Take over new requests and aborts; sleep while there is nothing to do. False ends the thread."""
        scheduler = self.scheduler
        with self._condition:
            idle = not scheduler.running and not scheduler.waiting
            while idle and not (self._added or self._tasks or self._aborted or self._closing):
                self._condition.wait()
            scheduler.waiting.extend(self._added)
            aborted = self._aborted
            self._added, self._aborted = [], []
            for sequence in aborted:
                scheduler.remove(sequence)
            if not self._tasks:
                scheduler.admit()
            return not self._closing

    def _work(self) -> None:
        if not self.scheduler.running:
            self._run_tasks()
            return
        try:
            self._emit(self.scheduler.step())
        except (RuntimeError, ValueError, IndexError) as error:
            logger.exception("a generation step failed")
            self._fail_all(EngineError(f"a generation step failed: {error}"))

    def _run_tasks(self) -> None:
        with self._condition:
            tasks, self._tasks = self._tasks, []
        for task, future in tasks:
            if not future.set_running_or_notify_cancel():
                continue  # whoever asked has gone
            try:
                task()
            except (RuntimeError, ValueError, KeyError, OSError, EngineError) as error:
                future.set_exception(error)
            else:
                future.set_result(None)

    def _emit(self, sequences: list[Running]) -> None:
        events: dict[asyncio.AbstractEventLoop, list[tuple[Sink, Event]]] = defaultdict(list)
        for sequence in sequences:
            sink: Sink = sequence.owner
            new = sequence.sampled - sink.emitted
            if sequence.finish_reason is None and new < self._interval:
                continue
            chunk = TokenChunk(
                tuple(sequence.ids[-new:]),
                tuple(sequence.logprobs[-new:]),
                sequence.finish_reason,
                self.weight_version,
            )
            sink.emitted = sequence.sampled
            events[sink.loop].append((sink, chunk))
        for loop, batch in events.items():
            _post(loop, batch)

    def _fail_all(self, error: EngineError) -> None:
        for sequence in self.scheduler.drop_all():
            sink: Sink = sequence.owner
            _post(sink.loop, [(sink, error)])


def _post(loop: asyncio.AbstractEventLoop, events: list[tuple[Sink, Event]]) -> None:
    def deliver(batch: Any) -> None:
        for sink, event in batch:
            sink.queue.put_nowait(event)

    if not loop.is_closed():
        loop.call_soon_threadsafe(deliver, events)
