"""A real pretrained model through the whole path: sandbox, harness, proxy, store, samples, a step, new weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rollout_kit import FilesDomain, task

from orchard_core.engine.protocol import SamplingParams
from orchard_core.engine.smollm import smollm2_folder
from orchard_core.engine.torch_engine import TorchEngine
from orchard_core.env import open_provider
from orchard_core.harness.protocol import HarnessLimits
from orchard_core.harness.react import ReactHarness
from orchard_core.proxy import RecordingProxy, SessionPolicy
from orchard_core.rollout.runner import RolloutRequest, RolloutRunner
from orchard_core.train.algorithms.grpo import Rollout
from orchard_core.train.backends.torch_backend import TorchBackend
from orchard_core.train.backends.torch_config import TorchConfig
from orchard_core.train.loops import rl_step
from orchard_core.train.losses import LossConfig
from orchard_core.trajectory import Lineage, Trajectory, build_samples
from orchard_core.trajectory.store import TrajectoryStore

pytestmark = pytest.mark.slow

TEMPERATURE = 0.8


async def roll_out(engine: TorchEngine, count: int) -> list[Trajectory]:
    """Rollouts of one task under `react`; two replies each at most."""
    provider, proxy = open_provider("bubblewrap", {}), RecordingProxy(engine)
    await proxy.start()
    try:
        runner = RolloutRunner(FilesDomain(), provider, proxy)
        return [await runner.run(request(number)) for number in range(count)]
    finally:
        await proxy.close()
        await provider.close()


def request(number: int) -> RolloutRequest:
    return RolloutRequest(
        id=f"smol-{number}",
        task=task(),
        harness=ReactHarness(),
        lineage=Lineage("run", "rl", sample=number),
        limits=HarnessLimits(max_turns=2, timeout_s=120),
        policy=SessionPolicy(
            SamplingParams(temperature=TEMPERATURE, max_tokens=24, seed=number), max_calls=2
        ),
    )


async def test_it_is_recorded_and_takes_a_training_step(tmp_path: Path) -> None:
    folder = smollm2_folder(tmp_path / "models")
    engine = TorchEngine.load(folder, max_batch=2, max_context=1024, threads=2)
    store = TrajectoryStore(tmp_path / "store")
    store.append(await roll_out(engine, 2))
    stored = sorted(store.query(stage="rl"), key=lambda t: t.id)
    reports = [build_samples(trajectory) for trajectory in stored]
    samples = [report.samples for report in reports]
    assert all(len(t.calls) == 2 for t in stored)
    assert sum(int(s.mask.sum()) for each in samples for s in each) == sum(
        c.completion_ids.size for t in stored for c in t.calls
    )

    loss = LossConfig(temperature=TEMPERATURE)
    backend = TorchBackend(folder, TorchConfig(lr=1e-4, total_steps=1, threads=2, loss=loss))
    # What was recorded while sampling is what the trainer computes for the same weights.
    first = samples[0][0]
    (scored,) = backend.logprobs([first])
    np.testing.assert_allclose(scored[first.mask], first.logprobs[first.mask], atol=1e-3)

    group = [
        Rollout(reward=reward, samples=found) for reward, found in zip((1.0, -1.0), samples, strict=True)
    ]
    figures = rl_step(backend, [group])
    assert figures["rollouts"] == 2
    assert np.isfinite(figures["loss"])
    (moved,) = backend.logprobs([first])
    assert float((moved - scored)[first.mask].sum()) > 0

    await engine.update_weights(backend.state_dict(), 2)
    (after,) = await roll_out(engine, 1)
    assert {call.weight_version for call in after.calls} == {2}
    await engine.close()
