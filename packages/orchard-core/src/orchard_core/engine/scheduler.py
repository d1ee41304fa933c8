"""Continuous batching: requests join and leave between steps; each step mixes decoding and prefill rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from orchard_core.engine.kv_store import KVStore
from orchard_core.engine.prefix_cache import PAGE, PrefixCache
from orchard_core.engine.protocol import FinishReason, SamplingParams
from orchard_core.engine.row_model import RowBatch, Segment, forward_rows, make_segment, min_rows
from orchard_core.engine.sampler import draw, truncated_logprobs


@dataclass(slots=True, eq=False)
class Running:
    """A request in the engine. `ids` are prompt and completion; the slot holds keys of `ids[:held]`."""

    prompt_length: int
    ids: list[int]
    params: SamplingParams
    numbers: np.random.Generator
    stop_ids: frozenset[int]
    owner: Any = None
    slot: int = -1
    held: int = 0
    started: bool = False
    logprobs: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @property
    def sampled(self) -> int:
        return len(self.ids) - self.prompt_length


@dataclass(slots=True)
class _Plan:
    """The rows of one step; `samples` pairs a sequence with the row whose logits it samples from."""

    ids: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    advances: list[tuple[Running, int]] = field(default_factory=list)
    samples: list[tuple[Running, int]] = field(default_factory=list)

    def add(self, token: int, slot: int, position: int) -> None:
        self.ids.append(token)
        self.slots.append(slot)
        self.positions.append(position)


class Scheduler:
    """Owns slots, the prefix cache and the step. Used by one thread only."""

    def __init__(
        self,
        model: Any,
        store: KVStore,
        cache: PrefixCache,
        *,
        slots: int,
        max_context: int,
        prefill_rows: int,
    ) -> None:
        self.model = model
        self.store = store
        self.cache = cache
        self.max_context = max_context
        self.waiting: deque[Running] = deque()
        self.running: list[Running] = []
        self.steps = 0
        self.rows = 0
        self._free = list(range(slots))
        self._prefill_rows = prefill_rows

    def admit(self) -> None:
        """Give free slots to waiting sequences, first come first served, lowest slot first."""
        while self.waiting and self._free:
            sequence = self.waiting.popleft()
            sequence.slot = self._free.pop(0)
            self.running.append(sequence)

    def remove(self, sequence: Running) -> None:
        """Take a sequence out, finished or not; what its slot holds goes to the prefix cache."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence in self.running:
            self.running.remove(sequence)
            self.cache.save(sequence.ids[: sequence.held], self.store, sequence.slot)
            self._free = sorted([*self._free, sequence.slot])

    def drop_all(self) -> list[Running]:
        """Take every sequence out and forget all keys and values."""
        dropped = [*self.running, *self.waiting]
        self._free = sorted([*self._free, *(sequence.slot for sequence in self.running)])
        self.running.clear()
        self.waiting.clear()
        self.cache.clear()
        return dropped

    def step(self) -> list[Running]:
        """Advance all running sequences; return those that got a token. Finished ones are removed."""
        plan = self._plan()
        while len(plan.ids) < min_rows(self.model):
            plan.add(0, 0, self.store.trash)
        batch = RowBatch(
            torch.tensor(plan.slots), torch.tensor(plan.positions), tuple(plan.segments), self.store
        )
        logits = forward_rows(self.model, torch.tensor(plan.ids), batch)
        self.steps += 1
        self.rows += len(plan.ids)
        for sequence, count in plan.advances:
            sequence.held += count
        for sequence, _ in plan.samples:
            if sequence.sampled == 0:
                self.cache.save(sequence.ids, self.store, sequence.slot)
        return self._sample(plan, logits)

    def _plan(self) -> _Plan:
        plan = _Plan()
        decoding = [sequence for sequence in self.running if sequence.sampled > 0]
        if decoding:
            self._plan_decoding(plan, decoding)
        self._plan_prefill(plan)
        return plan

    def _plan_decoding(self, plan: _Plan, decoding: Sequence[Running]) -> None:
        by_slot = {sequence.slot: sequence for sequence in decoding}
        first, last = min(by_slot), max(by_slot)
        seen = []
        for slot in range(first, last + 1):
            sequence = by_slot.get(slot)
            if sequence is None:
                plan.add(0, slot, self.store.trash)
                seen.append(0)
                continue
            plan.samples.append((sequence, len(plan.ids)))
            plan.advances.append((sequence, 1))
            plan.add(sequence.ids[-1], slot, sequence.held)
            seen.append(sequence.held)
        plan.segments.append(make_segment(0, first, seen, one_slot=False))

    def _plan_prefill(self, plan: _Plan) -> None:
        budget = self._prefill_rows
        begun: list[Running] = []
        for sequence in self.running:
            if sequence.sampled > 0:
                continue
            if not sequence.started:
                if any(_shares_next_page(sequence, other) for other in begun):
                    continue  # the other's pages can be reused once it has computed them
                sequence.held = self.cache.load(sequence.ids, self.store, sequence.slot)
                self.cache.stats.prompt_tokens += sequence.prompt_length
                self.cache.stats.hit_tokens += sequence.held
                sequence.started = True
            begun.append(sequence)
            count = min(budget, sequence.prompt_length - sequence.held)
            if count:
                self._plan_chunk(plan, sequence, count)
            budget -= count
            if budget == 0:
                return

    def _plan_chunk(self, plan: _Plan, sequence: Running, count: int) -> None:
        first = len(plan.ids)
        span = range(sequence.held, sequence.held + count)
        for position in span:
            plan.add(sequence.ids[position], sequence.slot, position)
        plan.segments.append(make_segment(first, sequence.slot, span, one_slot=True))
        plan.advances.append((sequence, count))
        if span.stop == sequence.prompt_length:
            plan.samples.append((sequence, len(plan.ids) - 1))

    def _sample(self, plan: _Plan, logits: torch.Tensor) -> list[Running]:
        if not plan.samples:
            return []
        sequences = [sequence for sequence, _ in plan.samples]
        rows = torch.tensor([row for _, row in plan.samples])
        logprobs = truncated_logprobs(logits[rows], [sequence.params for sequence in sequences])
        tokens, chosen = draw(logprobs, [sequence.numbers.random() for sequence in sequences])
        for sequence, token, logprob in zip(sequences, tokens, chosen, strict=True):
            sequence.ids.append(token)
            sequence.logprobs.append(logprob)
            sequence.finish_reason = self._finish_reason(sequence, token)
            if sequence.finish_reason is not None:
                self.remove(sequence)
        return sequences

    def _finish_reason(self, sequence: Running, token: int) -> FinishReason | None:
        if token in sequence.stop_ids:
            return "stop"
        if sequence.sampled >= sequence.params.max_tokens or len(sequence.ids) >= self.max_context:
            return "length"
        return None


def _shares_next_page(sequence: Running, other: Running) -> bool:
    """Whether `other` is computing a first page of its prompt that `sequence` needs as well."""
    stop = (other.held // PAGE + 1) * PAGE
    return stop <= min(sequence.prompt_length, other.prompt_length) and (
        sequence.ids[:stop] == other.ids[:stop]
    )
