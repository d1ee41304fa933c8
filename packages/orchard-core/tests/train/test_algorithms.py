"""What the algorithms put into the per-token weights, and what the losses make of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from orchard_core.errors import UsageError
from orchard_core.train.algorithms.grpo import GrpoConfig, Rollout, advantages, grpo
from orchard_core.train.algorithms.sft import sft
from orchard_core.train.batch import WeightedSample, zeros
from orchard_core.train.losses import LossConfig, LossStats, Targets, k3, policy_gradient, weighted_loss
from orchard_core.trajectory.types import Sample

MakeSample = Callable[..., Sample]


def test_sft_counts_every_token_or_every_sample_the_same(make_sample: MakeSample) -> None:
    samples = [make_sample(10, 1), make_sample(40, 2)]
    by_token = np.concatenate([w.w_ce for w in sft(samples, "token")])
    assert by_token.sum() == pytest.approx(1)
    assert len(set(by_token[by_token > 0].tolist())) == 1
    assert [float(w.w_ce.sum()) for w in sft(samples, "sample")] == pytest.approx([0.5, 0.5])
    for weighted, sample in zip(sft(samples), samples, strict=True):
        assert ((weighted.w_ce > 0) == sample.mask).all()


def test_the_first_token_is_never_trained(make_sample: MakeSample) -> None:
    sample = make_sample(6)
    sample = replace(sample, mask=np.ones(6, dtype=bool))
    [weighted] = sft([sample])
    assert weighted.w_ce[0] == 0
    assert weighted.w_ce.sum() == pytest.approx(1)
    with pytest.raises(UsageError, match="first token"):
        WeightedSample(sample, zeros(sample), np.ones(6, dtype=np.float32), zeros(sample))


def test_advantages_are_centred_and_scaled() -> None:
    values = advantages([1, -1, -1, -1])
    assert values.sum() == pytest.approx(0)
    assert values == pytest.approx([1.5, -0.5, -0.5, -0.5], rel=1e-5)  # deviation with n - 1 is 1
    assert advantages([1, -1, -1, -1], ddof=0)[0] == pytest.approx(1.7320508, rel=1e-5)


def test_a_group_of_one_or_of_equals_has_no_advantage() -> None:
    assert advantages([1.0]).tolist() == [0.0]
    assert advantages([1.0, 1.0]).tolist() == [0.0, 0.0]


def test_a_rollout_counts_once_however_many_samples_it_has(make_sample: MakeSample) -> None:
    one, two, three = make_sample(12, 1), make_sample(30, 2), make_sample(20, 3)
    weighted = grpo([[Rollout(1.0, (one, two)), Rollout(-1.0, (three,))]])
    gain = float(advantages([1.0, -1.0])[0])
    assert float(weighted[0].w_pg.sum() + weighted[1].w_pg.sum()) == pytest.approx(gain / 2)
    assert float(weighted[2].w_pg.sum()) == pytest.approx(-gain / 2)
    first = np.concatenate([weighted[0].w_pg[one.mask], weighted[1].w_pg[two.mask]])
    assert len(set(first.tolist())) == 1
    assert sum(float(w.w_entropy.sum()) for w in weighted if w.w_entropy is not None) == pytest.approx(1e-4)


def test_groups_are_baselines_of_their_own(make_sample: MakeSample) -> None:
    easy = [Rollout(1.0, (make_sample(8, 1),)), Rollout(1.0, (make_sample(8, 2),))]
    mixed = [Rollout(1.0, (make_sample(8, 3),)), Rollout(-1.0, (make_sample(8, 4),))]
    weighted = grpo([easy, mixed])
    assert not weighted[0].w_pg.any()
    assert weighted[2].w_pg.sum() > 0 > weighted[3].w_pg.sum()


def test_the_reference_enters_as_a_divergence(make_sample: MakeSample) -> None:
    group = [Rollout(1.0, (make_sample(8, 1),)), Rollout(-1.0, (make_sample(8, 2),))]

    def reference(samples: Sequence[Sample]) -> list[np.ndarray]:
        return [np.full(len(s), -1.5, dtype=np.float32) for s in samples]

    weighted = grpo([group], GrpoConfig(kl_coef=0.1), reference)
    assert sum(float(w.w_kd.sum()) for w in weighted) == pytest.approx(0.1)
    assert weighted[0].ref_logprobs is not None
    with pytest.raises(UsageError, match="reference"):
        grpo([group], GrpoConfig(kl_coef=0.1))


def test_rollouts_without_behaviour_logprobs_are_refused(make_sample: MakeSample) -> None:
    group = [Rollout(r, (make_sample(8, i, has_logprobs=False),)) for i, r in enumerate([1.0, -1.0])]
    with pytest.raises(UsageError, match="behaviour"):
        grpo([group])


@pytest.mark.parametrize(
    ("ratio", "weight", "value", "slope"),
    [
        (1.1, 2.0, -2.2, -2.0),
        (1.5, 2.0, -1.28 * 2, 0.0),  # gains stop counting above the upper bound
        (0.5, 2.0, -1.0, -2.0),
        (0.5, -2.0, 0.8 * 2, 0.0),  # losses stop counting below the lower bound
        (1.5, -2.0, 3.0, 2.0),
        (0.9, -2.0, 1.8, 2.0),
    ],
)
def test_clipping_is_pessimistic_for_both_signs(
    ratio: float, weight: float, value: float, slope: float
) -> None:
    r = torch.tensor([ratio], requires_grad=True)
    loss = policy_gradient(r, torch.tensor([weight]), LossConfig())
    loss.sum().backward()
    assert loss.item() == pytest.approx(value, rel=1e-6)
    assert r.grad is not None
    assert r.grad.item() == pytest.approx(slope)


def test_k3_is_an_unbiased_divergence() -> None:
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    estimate = (p * k3(p.log(), q.log())).sum()
    assert estimate.item() == pytest.approx(float((p * (p / q).log()).sum()), rel=1e-5)
    assert (k3(p.log(), q.log()) >= 0).all()


def targets(k: int, **weights: list[float]) -> Targets:
    def column(name: str) -> torch.Tensor:
        return torch.tensor(weights.get(name, [0.0] * k))

    return Targets(
        before=torch.arange(k),
        token=torch.arange(k),
        **{n: column(n) for n in ("w_pg", "w_ce", "w_kd", "w_entropy", "behaviour", "reference")},
    )


def test_the_loss_is_the_weighted_sum_of_its_terms() -> None:
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    logps = torch.log_softmax(logits / 0.7, dim=-1)
    chosen = logps.diagonal()
    goal = targets(
        3,
        w_ce=[0.5, 0, 0],
        w_pg=[0, -2.0, 0],
        w_kd=[0, 0, 3.0],
        behaviour=[0, -1.6, 0],
        reference=[0, 0, -2.0],
    )
    stats = LossStats()
    loss = weighted_loss(logits, goal, LossConfig(temperature=0.7), stats)
    ratio = torch.exp(chosen[1] + 1.6)
    pg = -torch.minimum(ratio * -2, ratio.clamp(0.8, 1.28) * -2)
    gap = chosen[2] + 2.0
    expected = -0.5 * chosen[0] + pg + 3 * (torch.exp(-gap) - 1 + gap)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    summary = stats.summary()
    assert summary["ratio_mean"] == pytest.approx(ratio.item(), rel=1e-5)
    assert summary["ce"] == pytest.approx(-chosen[0].item(), rel=1e-5)
    assert summary["loss"] == pytest.approx(loss.item())


def test_the_entropy_bonus_flattens_the_distribution() -> None:
    logits = torch.tensor([[2.0, 0.0, 0.0]], requires_grad=True)
    weighted_loss(logits, targets(1, w_entropy=[1.0]), LossConfig(), LossStats()).backward()
    assert logits.grad is not None
    assert logits.grad[0, 0] > 0 > logits.grad[0, 1]


def test_ratio_metrics_count_what_clipping_stopped() -> None:
    logits = torch.zeros(4, 4)  # log p = log 1/4 everywhere
    base = float(np.log(0.25))
    behaviour = [base - np.log(r) for r in (1.0, 1.5, 0.5, 1.5)]
    stats = LossStats()
    weighted_loss(logits, targets(4, w_pg=[1.0, 1.0, -1.0, -1.0], behaviour=behaviour), LossConfig(), stats)
    summary = stats.summary()
    assert summary["clip_fraction"] == pytest.approx(0.5)
    assert summary["ratio_outside_0.9_1.1"] == pytest.approx(0.75)
    assert (summary["ratio_min"], summary["ratio_max"]) == pytest.approx((0.5, 1.5), rel=1e-5)
