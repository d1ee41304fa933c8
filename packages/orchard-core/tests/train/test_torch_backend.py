"""The torch backend: learning, log-probabilities, checkpoints, export."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from orchard_core.engine.errors import ModelFolderError
from orchard_core.engine.saving import SaveError
from orchard_core.errors import UsageError
from orchard_core.train.algorithms.grpo import Rollout
from orchard_core.train.algorithms.sft import sft
from orchard_core.train.backends.protocol import TrainerBackend
from orchard_core.train.backends.torch_backend import TorchBackend
from orchard_core.train.backends.torch_config import TorchConfig, learning_rate
from orchard_core.train.errors import CheckpointError, DivergedError
from orchard_core.train.folders import atomic_folder
from orchard_core.train.loops import rl_step
from orchard_core.trajectory.types import Sample

MakeSample = Callable[..., Sample]
FAST = TorchConfig(lr=5e-3, schedule="cosine", total_steps=6, warmup=2, tokens_per_row=64)


def weights(backend: TorchBackend) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in backend.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_backend_fits_its_protocol(model_folder: Path) -> None:
    assert isinstance(TorchBackend(model_folder), TrainerBackend)


def test_sft_steps_lower_the_cross_entropy(model_folder: Path, make_sample: MakeSample) -> None:
    backend = TorchBackend(model_folder, replace(FAST, schedule="constant", warmup=0))
    batch = sft([make_sample(20, i) for i in range(3)])
    losses = [backend.step(batch)["ce"] for _ in range(8)]
    assert losses[-1] < 0.7 * losses[0]


def test_the_size_of_rows_does_not_change_what_is_learned(
    model_folder: Path, make_sample: MakeSample
) -> None:
    batch = sft([make_sample(12 + i, i) for i in range(5)])
    small, large = (TorchBackend(model_folder, replace(FAST, tokens_per_row=n)) for n in (1, 4096))
    a, b = small.step(batch), large.step(batch)
    assert (a["rows"], b["rows"]) == (5, 1)
    assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
    assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-4)


def test_logprobs_are_the_models(model_folder: Path, make_sample: MakeSample) -> None:
    backend = TorchBackend(model_folder, FAST)
    samples = [make_sample(n, n) for n in (9, 30, 1, 17)]
    for sample, got in zip(samples, backend.logprobs(samples), strict=True):
        ids = torch.from_numpy(sample.ids.astype(np.int64))[None]
        with torch.no_grad():
            table = torch.log_softmax(backend.model(input_ids=ids, use_cache=False).logits[0], dim=-1)
        expected = [0.0] + [float(table[t - 1, ids[0, t]]) for t in range(1, len(sample))]
        assert got == pytest.approx(expected, abs=1e-5)


def test_ratios_start_at_one_and_success_gets_likelier(model_folder: Path, make_sample: MakeSample) -> None:
    backend = TorchBackend(model_folder, TorchConfig(lr=2e-3))
    drafts = [make_sample(16, i) for i in range(4)]
    samples = [replace(s, logprobs=lp) for s, lp in zip(drafts, backend.logprobs(drafts), strict=True)]
    group = [Rollout(1.0 if i < 2 else -1.0, (s,)) for i, s in enumerate(samples)]
    before = [float(lp[s.mask].sum()) for s, lp in zip(samples, backend.logprobs(samples), strict=True)]
    metrics = rl_step(backend, [group])
    after = [float(lp[s.mask].sum()) for s, lp in zip(samples, backend.logprobs(samples), strict=True)]
    assert metrics["ratio_min"] == pytest.approx(1, abs=1e-4)
    assert metrics["clip_fraction"] == 0
    assert metrics["positive_share"] == 0.5
    assert sum(after[:2]) - sum(after[2:]) > sum(before[:2]) - sum(before[2:])


def test_a_resumed_run_ends_with_identical_bits(
    model_folder: Path, make_sample: MakeSample, tmp_path: Path
) -> None:
    batches = [sft([make_sample(15 + i, 10 * step + i) for i in range(3)]) for step in range(4)]
    straight = TorchBackend(model_folder, FAST)
    for batch in batches:
        straight.step(batch)
    first = TorchBackend(model_folder, FAST)
    for batch in batches[:2]:
        first.step(batch)
    first.save_checkpoint(tmp_path / "c", {"note": [1, "x"]})
    noise = torch.rand(3)
    resumed = TorchBackend(model_folder, replace(FAST, seed=9))
    assert resumed.load_checkpoint(tmp_path / "c") == {"note": [1, "x"]}
    assert torch.equal(torch.rand(3), noise)
    assert resumed.steps_done == 2
    for batch in batches[2:]:
        resumed.step(batch)
    assert same(weights(straight), weights(resumed))
    straight.save_checkpoint(tmp_path / "a")
    resumed.save_checkpoint(tmp_path / "b")
    a, b = (load_file(tmp_path / name / "checkpoint.safetensors") for name in "ab")
    assert same(
        {k: v for k, v in a.items() if k != "random.cpu"}, {k: v for k, v in b.items() if k != "random.cpu"}
    )
    assert any(name.startswith("optimiser.exp_avg_sq.") for name in a)


def test_a_checkpoint_of_another_model_is_refused(model_folder: Path, tmp_path: Path) -> None:
    TorchBackend(model_folder, FAST).save_checkpoint(tmp_path / "c")
    wider = AutoConfig.from_pretrained(model_folder)
    wider.vocab_size += 1
    AutoModelForCausalLM.from_config(wider).save_pretrained(tmp_path / "wider")
    with pytest.raises(CheckpointError, match="another model"):
        TorchBackend(tmp_path / "wider", FAST).load_checkpoint(tmp_path / "c")


def test_an_incomplete_checkpoint_is_refused(model_folder: Path, tmp_path: Path) -> None:
    backend = TorchBackend(model_folder, FAST)
    backend.save_checkpoint(tmp_path / "c")
    (tmp_path / "c" / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"state\.json"):
        backend.load_checkpoint(tmp_path / "c")
    with pytest.raises(CheckpointError):
        backend.load_checkpoint(tmp_path / "nothing")


def test_an_export_loads_again_with_its_tokenizer(
    model_folder: Path, make_sample: MakeSample, tmp_path: Path
) -> None:
    backend = TorchBackend(model_folder, FAST)
    backend.step(sft([make_sample(20)]))
    folder = backend.export_hf(tmp_path / "out")
    again = TorchBackend(folder, FAST)
    assert same(weights(backend), weights(again))
    assert (folder / "tokenizer.json").read_text() == (model_folder / "tokenizer.json").read_text()
    assert (folder / "chat_template.jinja").exists()
    backend.step(sft([make_sample(20)]))
    backend.export_hf(folder)
    assert same(weights(backend), weights(TorchBackend(folder, FAST)))


def test_a_step_that_diverges_leaves_the_weights(model_folder: Path, make_sample: MakeSample) -> None:
    backend = TorchBackend(model_folder, FAST)
    before = weights(backend)
    [item] = sft([make_sample(10)])
    broken = replace(item, w_ce=np.where(item.w_ce > 0, np.float32(np.inf), np.float32(0)))
    with pytest.raises(DivergedError, match="not finite"):
        backend.step([broken])
    assert same(before, weights(backend))
    assert backend.steps_done == 0


def test_the_balance_loss_of_the_router_is_off_unless_asked_for(
    model_folder: Path, make_sample: MakeSample
) -> None:
    batch = sft([make_sample(20, i) for i in range(2)])
    assert "router_aux" not in TorchBackend(model_folder, FAST).step(batch)
    assert TorchBackend(model_folder, replace(FAST, router_aux_coef=0.01)).step(batch)["router_aux"] > 0


def test_a_batch_without_weights_is_refused(model_folder: Path) -> None:
    with pytest.raises(UsageError, match="nothing to learn"):
        TorchBackend(model_folder, FAST).step([])


def test_folders_without_config_or_weights_are_named(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"config\.json"):
        TorchBackend(tmp_path)
    shutil.copy(model_folder / "config.json", tmp_path)
    with pytest.raises(ModelFolderError, match="safetensors"):
        TorchBackend(tmp_path)


def test_the_schedule_warms_up_and_falls() -> None:
    config = TorchConfig(lr=1.0, min_lr=0.1, schedule="cosine", total_steps=10, warmup=0.2)
    rates = [learning_rate(config, step) for step in range(11)]
    assert rates[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert rates[6] == pytest.approx(0.55)
    assert rates[10] == pytest.approx(0.1)
    assert learning_rate(TorchConfig(lr=1.0, warmup=4), 1) == 0.5
    assert learning_rate(TorchConfig(lr=1.0, warmup=4), 400) == 1.0
    with pytest.raises(UsageError, match="total_steps"):
        TorchConfig(schedule="cosine")


def test_a_failed_write_leaves_the_old_folder(tmp_path: Path) -> None:
    target = tmp_path / "kept"
    with atomic_folder(target) as draft:
        (draft / "file").write_text("old")

    def fail() -> None:
        with atomic_folder(target) as draft:
            (draft / "file").write_text("new")
            raise OSError("disk full")

    with pytest.raises(SaveError, match="kept can't be written: disk full"):
        fail()
    assert (target / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
