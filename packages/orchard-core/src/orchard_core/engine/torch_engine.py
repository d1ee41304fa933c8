"""The built-in token engine: any small Hugging Face causal model, on a CPU, with exact records.

A request's tokens and log-probabilities are a function of its prompt, its sampling parameters and
the weights, bit for bit: neither the other requests of the batch, nor the order of arrival, nor
what the prefix cache held make a difference (see `row_model`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchard_core.errors import MissingExtraError, UsageError

try:
    import torch
    import transformers
    from torch import Tensor
except ImportError as error:
    raise MissingExtraError("torch or transformers", "train") from error

from orchard_core.engine.engine_checks import check_architecture, find_min_rows
from orchard_core.engine.errors import ContextOverflowError, EngineError
from orchard_core.engine.kv_store import KVStore
from orchard_core.engine.loading import ModelFolder, load_model_folder, quiet
from orchard_core.engine.prefix_cache import PrefixCache
from orchard_core.engine.protocol import SamplingParams, TokenChunk
from orchard_core.engine.renderer import ChatTemplateRenderer
from orchard_core.engine.row_model import install, kv_shape
from orchard_core.engine.sampler import uniforms
from orchard_core.engine.scheduler import Running, Scheduler
from orchard_core.engine.worker import Sink, Worker


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counts since the start. `rows` are computed tokens, padding included."""

    steps: int
    rows: int
    running: int
    waiting: int
    prompt_tokens: int
    prefix_hit_tokens: int
    cached_pages: int
    evicted_pages: int


class TorchEngine:
    """A `TokenEngine` with continuous batching and prefix reuse. Make it with `load`."""

    def __init__(
        self,
        model: Any,
        renderer: ChatTemplateRenderer,
        *,
        name: str,
        max_batch: int = 16,
        max_context: int = 2048,
        threads: int = 1,
        prefill_rows: int = 64,
        prefix_cache_bytes: int = 256 << 20,
        stream_interval: int = 4,
    ) -> None:
        """`model` becomes the engine's own. Raises EngineError for an architecture it can't run."""
        self._name = name
        self._renderer = renderer
        self._max_context = max_context
        self._model = model.eval().requires_grad_(False)
        self._vocab = int(model.config.vocab_size)
        shape = kv_shape(model.config)
        torch.set_num_threads(threads)
        check_architecture(model, max_context, lambda: install(model))
        self.batch_invariant = find_min_rows(model) is not None
        dtype = model.dtype
        self._scheduler = Scheduler(
            model,
            KVStore(shape, max_batch, max_context, dtype),
            PrefixCache(shape, dtype, prefix_cache_bytes),
            slots=max_batch,
            max_context=max_context,
            prefill_rows=prefill_rows,
        )
        self._worker = Worker(self._scheduler, threads=threads, stream_interval=stream_interval)

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        dtype: str = "float32",
        name: str | None = None,
        weight_version: int = 0,
        **options: Any,
    ) -> TorchEngine:
        """Open a model folder; `options` are the constructor's. Raises ModelFolderError, EngineError."""
        checked = load_model_folder(folder)
        engine = cls(_read_model(checked, dtype), checked.renderer, name=name or checked.path.name, **options)
        engine._worker.weight_version = weight_version
        return engine

    @property
    def model(self) -> str:
        return self._name

    @property
    def renderer(self) -> ChatTemplateRenderer:
        return self._renderer

    @property
    def weight_version(self) -> int:
        return self._worker.weight_version

    @property
    def max_context(self) -> int:
        return self._max_context

    @property
    def stats(self) -> EngineStats:
        scheduler = self._scheduler
        cache = scheduler.cache
        return EngineStats(
            scheduler.steps,
            scheduler.rows,
            len(scheduler.running),
            len(scheduler.waiting),
            cache.stats.prompt_tokens,
            cache.stats.hit_tokens,
            len(cache),
            cache.stats.evicted_pages,
        )

    async def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams
    ) -> AsyncGenerator[TokenChunk, None]:
        """Generate; see `TokenEngine`. The renderer's stop tokens always stop.

        Raises ContextOverflowError, UsageError, EngineError.
        """
        sequence = self._sequence(prompt_ids, params)
        sink: Sink = sequence.owner
        self._worker.submit(sequence)
        finished = False
        try:
            while not finished:
                event = await sink.queue.get()
                finished = isinstance(event, EngineError) or event.finish_reason is not None
                if isinstance(event, EngineError):
                    raise event
                yield event
        finally:
            if not finished:
                self._worker.abort(sequence)

    async def update_weights(self, source: Path | str | Mapping[str, Tensor], version: int) -> None:
        """Take new weights from a model folder or a state dict of the model's parameter names.

        Running requests finish on the old weights first; then the prefix cache is emptied.
        Raises EngineError when names or shapes don't match.
        """
        if isinstance(source, (str, Path)):
            dtype = str(self._model.dtype).removeprefix("torch.")
            checked = await asyncio.to_thread(load_model_folder, source)
            fresh = await asyncio.to_thread(_read_model, checked, dtype)
            state: Mapping[str, Tensor] = fresh.state_dict()
        else:
            state = source
        await asyncio.wrap_future(self._worker.between_requests(lambda: self._load_weights(state, version)))

    async def close(self) -> None:
        await asyncio.to_thread(self._worker.close)

    def _load_weights(self, state: Mapping[str, Tensor], version: int) -> None:
        own = self._model.state_dict()
        given = {own[name].data_ptr() for name in state if name in own}
        missing = [name for name in own if own[name].data_ptr() not in given]  # a tied tensor has two names
        if missing:
            raise EngineError(f"the new weights lack {sorted(missing)[:3]}")
        wrong = [name for name, value in state.items() if name not in own or own[name].shape != value.shape]
        if wrong:
            raise EngineError(f"the new weights do not fit the model: {sorted(wrong)[:3]}")
        for name, value in state.items():
            own[name].copy_(value)
        self._scheduler.cache.clear()
        self._worker.weight_version = version

    def _sequence(self, prompt_ids: Sequence[int], params: SamplingParams) -> Running:
        ids = [int(token) for token in prompt_ids]
        if not ids or min(ids) < 0 or max(ids) >= self._vocab:
            raise UsageError(f"a prompt needs at least one token and only ids below {self._vocab}")
        if params.max_tokens < 1:
            raise UsageError("max_tokens must be at least 1")
        if len(ids) >= self._max_context:
            raise ContextOverflowError(
                f"the prompt has {len(ids)} tokens and the engine's context holds {self._max_context}"
            )
        seed = secrets.randbits(63) if params.seed is None else params.seed
        stops = frozenset((*self._renderer.stop_token_ids, *params.stop_token_ids))
        return Running(len(ids), ids, params, uniforms(seed), stops, Sink())


def _read_model(folder: ModelFolder, dtype: str) -> Any:
    with quiet():
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder.path, dtype=getattr(torch, dtype), attn_implementation="eager", local_files_only=True
        )
