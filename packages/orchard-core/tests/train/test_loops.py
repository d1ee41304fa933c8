"""SFT runs, their resumption, and metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from orchard_core.errors import UsageError
from orchard_core.train.algorithms.grpo import GrpoConfig, Rollout
from orchard_core.train.algorithms.sft import sft
from orchard_core.train.backends.torch_backend import TorchBackend
from orchard_core.train.backends.torch_config import TorchConfig
from orchard_core.train.batch import WeightedSample
from orchard_core.train.errors import CheckpointError
from orchard_core.train.loops import RlConfig, SftConfig, last_checkpoint_step, rl_step, run_sft, sft_steps
from orchard_core.train.metrics import MetricsLogger, read_metrics
from orchard_core.trajectory.types import Sample

MakeSample = Callable[..., Sample]
CONFIG = SftConfig(epochs=2, batch_samples=3, seed=5, checkpoint_every=2)


class _Stop(Exception):
    """Stands for the process being killed."""


def backend_of(folder: Path) -> TorchBackend:
    return TorchBackend(folder, TorchConfig(lr=3e-3))


@pytest.fixture
def samples(make_sample: MakeSample) -> list[Sample]:
    return [make_sample(10 + i, i) for i in range(8)]


def test_a_killed_run_resumes_to_identical_weights_and_metrics(
    model_folder: Path, samples: list[Sample], tmp_path: Path
) -> None:
    straight = backend_of(model_folder)
    assert run_sft(straight, samples, CONFIG) == sft_steps(8, CONFIG) == 6

    def stop(done: int, total: int, metrics: dict[str, float]) -> None:
        if done == 5:
            raise _Stop

    with MetricsLogger(tmp_path / "m") as metrics, pytest.raises(_Stop):
        run_sft(backend_of(model_folder), samples, CONFIG, metrics, stop, tmp_path / "c")
    assert last_checkpoint_step(tmp_path / "c") == 4
    resumed = backend_of(model_folder)
    with MetricsLogger(tmp_path / "m", last_checkpoint_step(tmp_path / "c")) as metrics:
        run_sft(resumed, samples, CONFIG, metrics, None, tmp_path / "c")
    assert all(
        torch.equal(a, b)
        for a, b in zip(straight.state_dict().values(), resumed.state_dict().values(), strict=True)
    )
    assert [row["step"] for row in read_metrics(tmp_path / "m")] == [1, 2, 3, 4, 5, 6]
    assert len(list((tmp_path / "c").iterdir())) == 1


def test_a_finished_run_trains_nothing_more(
    model_folder: Path, samples: list[Sample], tmp_path: Path
) -> None:
    run_sft(backend_of(model_folder), samples, CONFIG, checkpoint_dir=tmp_path)
    again = backend_of(model_folder)
    seen: list[int] = []
    run_sft(again, samples, CONFIG, on_progress=lambda done, *_: seen.append(done), checkpoint_dir=tmp_path)
    assert (seen, again.steps_done) == ([], 6)


def test_a_checkpoint_of_other_samples_is_refused(
    model_folder: Path, samples: list[Sample], tmp_path: Path
) -> None:
    run_sft(backend_of(model_folder), samples, CONFIG, checkpoint_dir=tmp_path)
    with pytest.raises(CheckpointError, match="other samples"):
        run_sft(backend_of(model_folder), samples[1:], CONFIG, checkpoint_dir=tmp_path)


def test_an_epoch_sees_every_sample_once_in_an_order_of_its_own(
    model_folder: Path, samples: list[Sample]
) -> None:
    batches: list[list[str]] = []

    def weigh(batch: Sequence[Sample]) -> list[WeightedSample]:
        batches.append([sample.trajectory_id for sample in batch])
        return sft(batch)

    run_sft(backend_of(model_folder), samples, CONFIG, weigh=weigh)
    first, second = list(chain(*batches[:3])), list(chain(*batches[3:]))
    assert sorted(first) == sorted(second) == sorted(s.trajectory_id for s in samples)
    assert first != second


def test_nothing_to_train_on_is_said(model_folder: Path, make_sample: MakeSample) -> None:
    blank = replace(make_sample(5), mask=np.zeros(5, dtype=bool))
    with pytest.raises(UsageError, match="no sample"):
        run_sft(backend_of(model_folder), [blank], CONFIG)
    with pytest.raises(UsageError, match="no group"):
        rl_step(backend_of(model_folder), [[Rollout(1.0, (blank,))]])


def test_an_rl_step_of_equal_rewards_is_refused(model_folder: Path, make_sample: MakeSample) -> None:
    group = [Rollout(1.0, (make_sample(8, i),)) for i in range(2)]
    with pytest.raises(UsageError, match="advantages are zero"):
        rl_step(backend_of(model_folder), [group], RlConfig(grpo=GrpoConfig(entropy_coef=0.0)))


def test_passes_and_mini_batches_make_that_many_updates(model_folder: Path, make_sample: MakeSample) -> None:
    groups = [
        [Rollout(r, (make_sample(8, 10 * g + i),)) for i, r in enumerate((1.0, -1.0))] for g in range(3)
    ]
    backend = backend_of(model_folder)
    metrics = rl_step(backend, groups, RlConfig(passes=2, mini_batches=3))
    assert metrics["updates"] == backend.steps_done == 6


def test_metrics_reach_both_records_and_a_torn_line_is_dropped(tmp_path: Path) -> None:
    with MetricsLogger(tmp_path) as metrics:
        metrics.log(1, {"loss": 2.0}, prefix="sft")
        metrics.log(2, {"loss": 1.0}, prefix="sft")
    with (tmp_path / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 3, "lo')
    with MetricsLogger(tmp_path, resume_step=1) as metrics:
        metrics.log(2, {"loss": 0.5}, prefix="sft")
    assert [(row["step"], row["sft/loss"]) for row in read_metrics(tmp_path)] == [(1, 2.0), (2, 0.5)]
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert [(e.step, e.value) for e in board.Scalars("sft/loss")] == [(1, 2.0), (2, 0.5)]


def test_a_fresh_logger_starts_an_empty_record(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        with MetricsLogger(tmp_path) as metrics:
            metrics.log(1, {"x": value})
    assert [row["x"] for row in read_metrics(tmp_path)] == [2.0]
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert [event.value for event in board.Scalars("x")] == [2.0]
