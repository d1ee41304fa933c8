"""Training, scoring, saving."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from orchard_core.errors import UsageError
from orchard_core.train.backends.hf_folder import load_causal_lm
from orchard_core.trajectory.types import Trajectory
from orchard_value.errors import LeakageError, ValueFolderError
from orchard_value.metrics import auc, selection_report
from orchard_value.model import Pooling, ValueModel, score
from orchard_value.sequences import labels, token_sequence
from orchard_value.training import ValueConfig, train_value

MakeTrajectory = Callable[..., Trajectory]
CONFIG = ValueConfig(epochs=6, batch_size=16, lr=5e-3, validation=0.15)


@pytest.fixture
def train_set(make_trajectory: MakeTrajectory) -> list[Trajectory]:
    return [make_trajectory(i, i % 2 == 0, package=f"p{i // 2 % 12}") for i in range(480)]


@pytest.fixture
def test_set(make_trajectory: MakeTrajectory) -> list[Trajectory]:
    return [make_trajectory(1000 + i, i % 4 == 3, f"held-{i // 4}", "other") for i in range(80)]


def test_a_value_model_learns_to_tell_and_to_select(
    model_folder: Path, train_set: list[Trajectory], test_set: list[Trajectory], tmp_path: Path
) -> None:
    steps: list[int] = []
    folder = train_value(
        model_folder,
        train_set,
        CONFIG,
        tmp_path / "v",
        test_set,
        lambda done, total, _: steps.append(total - done),
    )
    assert steps[-1] == 0
    scores = score(folder, test_set)
    assert auc(scores, labels(test_set)) > 0.9
    report = selection_report(scores, labels(test_set), [t.task_id for t in test_set], n=4)
    assert report.pass_at_1.mean == 0.25
    assert report.oracle.mean == 1.0
    assert report.gain.low > 0


def test_training_is_a_function_of_the_seed(
    model_folder: Path, train_set: list[Trajectory], test_set: list[Trajectory], tmp_path: Path
) -> None:
    config = replace(CONFIG, epochs=1)
    first, second = (train_value(model_folder, train_set[:40], config, tmp_path / name) for name in "ab")
    other = train_value(model_folder, train_set[:40], replace(config, seed=1), tmp_path / "c")
    assert np.array_equal(score(first, test_set), score(second, test_set))
    assert not np.array_equal(score(first, test_set), score(other, test_set))


@pytest.mark.parametrize("pooling", ["last", "turn_mean"])
def test_a_folder_gives_back_the_same_scores(
    model_folder: Path, test_set: list[Trajectory], tmp_path: Path, pooling: Pooling
) -> None:
    model = ValueModel(model_folder, pooling, max_tokens=12)
    torch.nn.init.normal_(model.head.weight)
    before = model.score(test_set)
    folder = model.save(tmp_path / "v")
    assert np.array_equal(score(folder, test_set), before)
    assert (folder / "tokenizer.json").exists()
    assert load_causal_lm(folder).config.vocab_size == 32
    with pytest.raises(ValueFolderError, match=r"value_head\.safetensors"):
        ValueModel.load(model_folder)


@pytest.mark.parametrize("pooling", ["last", "turn_mean"])
def test_scores_do_not_depend_on_the_company(
    model_folder: Path, test_set: list[Trajectory], pooling: Pooling
) -> None:
    model = ValueModel(model_folder, pooling)
    torch.nn.init.normal_(model.head.weight)
    together = model.score(test_set[:9])
    alone = np.concatenate([model.score([t]) for t in test_set[:9]])
    assert np.allclose(together, alone, atol=1e-6)
    assert np.allclose(model.score(test_set[:9], tokens_per_row=30), alone, atol=1e-6)
    assert np.unique(alone.round(6)).size > 1


def test_pooling_reads_what_it_says(model_folder: Path, test_set: list[Trajectory]) -> None:
    sequence = token_sequence(test_set[0])
    ids = torch.from_numpy(sequence.ids.astype(np.int64))[None]
    for pooling, first in (("last", len(sequence.ids) - 1), ("turn_mean", sequence.turn_start)):
        model = ValueModel(model_folder, pooling)  # type: ignore[arg-type]
        torch.nn.init.normal_(model.head.weight)
        with torch.no_grad():
            states = model.language_model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
            expected = torch.sigmoid(model.head(states[first:].mean(0))).item()
        assert model.score(test_set[:1])[0] == pytest.approx(expected, abs=1e-6)


def test_an_untrained_head_knows_nothing(model_folder: Path, test_set: list[Trajectory]) -> None:
    assert ValueModel(model_folder).score(test_set[:3]).tolist() == [0.5, 0.5, 0.5]
    assert ValueModel(model_folder).score([]).shape == (0,)


def test_leaking_or_one_sided_data_is_refused(
    model_folder: Path, train_set: list[Trajectory], test_set: list[Trajectory], tmp_path: Path
) -> None:
    with pytest.raises(LeakageError):
        train_value(model_folder, train_set, CONFIG, tmp_path / "v", [*test_set, train_set[0]])
    with pytest.raises(UsageError, match="successes and failures"):
        train_value(model_folder, train_set[::2], CONFIG, tmp_path / "v")
    assert not (tmp_path / "v").exists()
