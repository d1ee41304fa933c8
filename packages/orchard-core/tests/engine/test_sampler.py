from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orchard_core.engine.protocol import SamplingParams
from orchard_core.engine.sampler import draw, truncated_logprobs, uniforms

LOGITS = torch.log(torch.tensor([[0.05, 0.4, 0.3, 0.15, 0.1]]))


def probabilities(params: SamplingParams) -> list[float]:
    return truncated_logprobs(LOGITS, [params])[0].exp().tolist()


def test_without_truncation_the_distribution_is_the_models() -> None:
    assert probabilities(SamplingParams()) == pytest.approx([0.05, 0.4, 0.3, 0.15, 0.1], abs=1e-6)


def test_temperature_reshapes_the_distribution() -> None:
    weights = torch.tensor([0.05, 0.4, 0.3, 0.15, 0.1]) ** 2
    assert probabilities(SamplingParams(temperature=0.5)) == pytest.approx(
        (weights / weights.sum()).tolist(), abs=1e-6
    )


def test_top_k_keeps_k_tokens_and_renormalises() -> None:
    assert probabilities(SamplingParams(top_k=2)) == pytest.approx([0, 4 / 7, 3 / 7, 0, 0], abs=1e-6)


def test_top_p_keeps_the_token_that_crosses_the_bound() -> None:
    assert probabilities(SamplingParams(top_p=0.6)) == pytest.approx([0, 4 / 7, 3 / 7, 0, 0], abs=1e-6)
    assert probabilities(SamplingParams(top_p=0.01)) == pytest.approx([0, 1, 0, 0, 0], abs=1e-6)


def test_top_p_applies_to_what_top_k_left() -> None:
    assert probabilities(SamplingParams(top_k=2, top_p=0.5)) == pytest.approx([0, 1, 0, 0, 0], abs=1e-6)


def test_draws_follow_the_distribution() -> None:
    logprobs = truncated_logprobs(LOGITS, [SamplingParams(top_k=3)])
    numbers = uniforms(0)
    counts = Counter(draw(logprobs, [numbers.random()])[0][0] for _ in range(4000))
    for token, probability in enumerate(logprobs[0].exp().tolist()):
        assert counts[token] / 4000 == pytest.approx(probability, abs=0.03)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-20, 20), min_size=2, max_size=40),
    st.floats(0, 1, exclude_max=True),
    st.floats(0.1, 3),
    st.integers(0, 6),
    st.floats(0.05, 1),
)
def test_a_drawn_token_is_possible_and_its_logprob_is_the_distributions(
    logits: list[float], number: float, temperature: float, top_k: int, top_p: float
) -> None:
    logprobs = truncated_logprobs(torch.tensor([logits]), [SamplingParams(temperature, top_p, top_k)])
    tokens, chosen = draw(logprobs, [number])
    assert chosen[0] == logprobs[0, tokens[0]].item() > -float("inf")
    assert logprobs.exp().sum().item() == pytest.approx(1, abs=1e-4)


def test_a_row_gets_the_same_numbers_in_any_company() -> None:
    rows = torch.randn(33, 1001, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(temperature=0.5 + 0.1 * (i % 7), top_k=i % 3 * 20) for i in range(33)]
    together = draw(truncated_logprobs(rows, params), [i / 33 for i in range(33)])
    for index in range(33):
        single = draw(truncated_logprobs(rows[index : index + 1], params[index : index + 1]), [index / 33])
        assert (together[0][index], together[1][index]) == (single[0][0], single[1][0])
