"""Everything the stages of a run share: domain, sandboxes, proxy, engine, store, metrics, progress."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch

from orchard_core.domain import Domain, Split, Task, load_domain
from orchard_core.engine.protocol import Engine, SamplingParams
from orchard_core.engine.torch_engine import TorchEngine
from orchard_core.env import Provider, open_provider
from orchard_core.harness.protocol import Harness, HarnessLimits
from orchard_core.harness.registry import load_harness
from orchard_core.pipeline.models import base_folder
from orchard_core.pipeline.progress import ProgressDisplay
from orchard_core.pipeline.rollouts import RolloutService
from orchard_core.pipeline.seeds import derive_seed
from orchard_core.pipeline.writer import StoreWriter
from orchard_core.proxy import RecordingProxy, SessionPolicy
from orchard_core.recipe import BASE, HarnessConfig, OptimizerConfig, Recipe, RlStage
from orchard_core.rollout.runner import RolloutRequest, RolloutRunner
from orchard_core.train.backends.torch_backend import TorchBackend
from orchard_core.train.backends.torch_config import TorchConfig
from orchard_core.train.losses import LossConfig
from orchard_core.train.metrics import MetricsLogger
from orchard_core.trajectory.store import TrajectoryStore
from orchard_core.trajectory.types import Lineage

P = ParamSpec("P")
R = TypeVar("R")


class RunContext:
    """The shared parts of one run; made by `open_context`."""

    def __init__(
        self,
        recipe: Recipe,
        run_dir: Path,
        *,
        provider: Provider,
        engine: TorchEngine,
        rollouts: RolloutService,
        store: TrajectoryStore,
        harnesses: Mapping[str, Harness],
        domain: Domain,
        progress: ProgressDisplay,
    ) -> None:
        self.recipe = recipe
        self.run_dir = run_dir
        self.provider = provider
        self.engine = engine
        self.rollouts = rollouts
        self.store = store
        self.domain = domain
        self.progress = progress
        self._harnesses = harnesses
        self._model = BASE
        self._trainer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainer")
        self._tasks: dict[Split, list[Task]] = {}

    @property
    def run_id(self) -> str:
        return self.run_dir.name

    def tasks(self, split: Split, limit: int | None = None) -> list[Task]:
        """The split's tasks in the domain's order, or a seeded sample of `limit` of them."""
        if split not in self._tasks:
            self._tasks[split] = list(self.domain.tasks(split, self.recipe.domain.options))
        every = self._tasks[split]
        if limit is None:
            return every
        return self.sample(every, limit, derive_seed(self.recipe.seed, "tasks", split))

    @staticmethod
    def sample(tasks: Sequence[Task], limit: int, seed: int) -> list[Task]:
        """At most `limit` of the tasks, drawn by the seed, in a seeded order."""
        chosen = list(tasks)
        random.Random(seed).shuffle(chosen)
        return chosen[:limit]

    def model_folder(self, name: str) -> Path:
        """The model that a stage left, by the stage's name; "base" is the untrained one."""
        if name == BASE:
            return base_folder(self.recipe.model, self.run_dir / "models")
        return self.run_dir / "models" / name

    async def use_model(self, name: str) -> None:
        """Let the engine generate with the weights of a stage."""
        if name != self._model:
            await self.engine.update_weights(self.model_folder(name), self.engine.weight_version + 1)
            self._model = name

    async def update_weights(self, weights: Mapping[str, Any], stage: str, step: int) -> None:
        """Let the engine generate with weights that have no folder yet."""
        await self.engine.update_weights(weights, self.engine.weight_version + 1)
        self._model = f"{stage}@{step}"

    def request(
        self,
        stage: str,
        task: Task,
        harness: str | None = None,
        *,
        sample: int = 0,
        step: int = 0,
        engine: Engine | None = None,
    ) -> RolloutRequest:
        """A rollout whose id and seed follow from the run's seed and these arguments alone."""
        key = f"{stage}/{step}/{task.id}/{sample}"
        seed = derive_seed(self.recipe.seed, key)
        name = harness or self._draw_harness(seed)
        lineage = Lineage(
            run=self.run_id,
            stage=stage,
            recipe=self.recipe.name,
            generation=step,
            group=f"{stage}/{step}/{task.id}",
            sample=sample,
            seed=seed,
            parent=self._model,
        )
        limits = self.recipe.limits
        sampling = self.recipe.sampling
        policy = SessionPolicy(
            sampling=SamplingParams(
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                max_tokens=sampling.max_tokens,
                seed=seed,
            ),
            max_calls=limits.max_turns,
        )
        return RolloutRequest(
            id=f"{self.run_id}-{stage}-{step}-{task.id}-{sample}",
            task=task,
            harness=self._harnesses[name],
            limits=HarnessLimits(
                max_turns=limits.max_turns,
                timeout_s=limits.timeout_s,
                command_timeout_s=limits.command_timeout_s,
                max_tokens=sampling.max_tokens,
            ),
            policy=policy,
            lineage=lineage,
            engine=engine,
        )

    def _draw_harness(self, seed: int) -> str:
        """One of the recipe's training harnesses, by weight."""
        configs = [config for config in self.recipe.harnesses if config.weight > 0]
        weights = [config.weight for config in configs]
        return random.Random(derive_seed(seed, "harness")).choices(configs, weights)[0].label

    def backend(
        self, stage: str, init: str, optimizer: OptimizerConfig, steps: int, clip: RlStage | None = None
    ) -> TorchBackend:
        """A trainer that starts from the model `init` and will take `steps` steps."""
        loss = LossConfig(temperature=self.recipe.sampling.temperature)
        if clip is not None:
            loss = replace(loss, clip_low=clip.clip_low, clip_high=clip.clip_high)
        else:
            loss = replace(loss, temperature=1.0)
        config = TorchConfig(
            **optimizer.model_dump(),
            total_steps=steps,
            threads=self.recipe.engine.train_threads,
            seed=derive_seed(self.recipe.seed, stage, "trainer"),
            loss=loss,
        )
        return TorchBackend(self.model_folder(init), config)

    def checkpoint_folder(self, stage: str) -> Path:
        return self.run_dir / "checkpoints" / stage

    def metrics(self, stage: str, resume_step: int | None = None) -> MetricsLogger:
        return MetricsLogger(self.run_dir / "metrics" / stage, resume_step)

    async def in_training_thread(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run something long and CPU-bound beside the event loop.

        torch's thread count is the process's: it is the trainer's meanwhile, the engine's after, since
        the bits of what the engine computes depend on it.
        """

        def work() -> R:
            torch.set_num_threads(self.recipe.engine.train_threads)
            try:
                return call(*args, **kwargs)
            finally:
                torch.set_num_threads(self.recipe.engine.threads)

        return await asyncio.get_running_loop().run_in_executor(self._trainer, work)

    def close(self) -> None:
        self._trainer.shutdown(wait=True, cancel_futures=True)


def harness_table(configs: Sequence[HarnessConfig]) -> dict[str, Harness]:
    """The recipe's harnesses by key."""
    return {config.label: load_harness(config.name, config.options) for config in configs}


@asynccontextmanager
async def open_context(recipe: Recipe, run_dir: Path, progress: ProgressDisplay) -> AsyncIterator[RunContext]:
    """Open everything a run needs, and close it again whatever happens."""
    async with AsyncExitStack() as stack:
        domain = load_domain(recipe.domain.name)
        provider = open_provider(recipe.provider.kind, recipe.provider.options)
        stack.push_async_callback(provider.close)
        engine = TorchEngine.load(
            base_folder(recipe.model, run_dir / "models"),
            max_batch=recipe.engine.max_batch,
            max_context=recipe.engine.max_context,
            threads=recipe.engine.threads,
        )
        stack.push_async_callback(engine.close)
        proxy = RecordingProxy(engine, renderer=engine.renderer)
        await proxy.start()
        stack.push_async_callback(proxy.close)
        store = TrajectoryStore(run_dir / "store")
        writer = await stack.enter_async_context(StoreWriter(store))
        runner = RolloutRunner(domain, provider, proxy)
        context = RunContext(
            recipe,
            run_dir,
            provider=provider,
            engine=engine,
            rollouts=RolloutService(runner, store, writer, recipe.provider.concurrency),
            store=store,
            harnesses=harness_table(recipe.harnesses),
            domain=domain,
            progress=progress,
        )
        stack.callback(context.close)
        yield context


def with_engine(request: RolloutRequest, engine: Engine) -> RolloutRequest:
    """The same rollout, answered by another engine."""
    return replace(request, engine=engine)
