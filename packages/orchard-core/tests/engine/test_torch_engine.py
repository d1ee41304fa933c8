from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from orchard_core.engine.errors import ContextOverflowError, EngineError
from orchard_core.engine.protocol import SamplingParams, TokenChunk, TokenEngine
from orchard_core.engine.tiny import make_tiny_model
from orchard_core.engine.torch_engine import TorchEngine
from orchard_core.errors import UsageError

Result = tuple[list[int], list[float]]


async def generate(engine: TorchEngine, prompt: Sequence[int], params: SamplingParams) -> Result:
    chunks = [chunk async for chunk in engine.stream(prompt, params)]
    ids = [token for chunk in chunks for token in chunk.token_ids]
    logprobs = [value for chunk in chunks for value in chunk.logprobs]
    return ids, logprobs


def prompts(count: int, seed: int, vocab: int = 320) -> list[list[int]]:
    rnd = random.Random(seed)
    return [[rnd.randrange(3, vocab) for _ in range(rnd.choice([1, 5, 40, 90, 200]))] for _ in range(count)]


def reference_logprobs(
    folder: Path, prompt: Sequence[int], ids: Sequence[int], temperature: float
) -> torch.Tensor:
    """Log-probabilities (len(ids), vocab) by the unmodified model's teacher-forced forward pass."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.inference_mode():
        logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1)


def test_it_is_a_token_engine(engine: TorchEngine) -> None:
    assert isinstance(engine, TokenEngine)
    assert engine.max_context == 512


@pytest.mark.parametrize("temperature", [1.0, 0.7])
async def test_logprobs_equal_those_of_the_plain_model(
    engine: TorchEngine, tiny_folder: Path, temperature: float
) -> None:
    for seed, prompt in enumerate(prompts(4, 1)):
        params = SamplingParams(temperature=temperature, max_tokens=20, seed=seed)
        ids, logprobs = await generate(engine, prompt, params)
        expected = reference_logprobs(tiny_folder, prompt, ids, temperature)
        chosen = expected.gather(1, torch.tensor(ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(logprobs), chosen, atol=1e-5, rtol=0)


async def test_greedy_tokens_are_the_most_likely(engine: TorchEngine, tiny_folder: Path) -> None:
    prompt = prompts(1, 2)[0]
    ids, logprobs = await generate(engine, prompt, SamplingParams(temperature=0, max_tokens=16))
    assert reference_logprobs(tiny_folder, prompt, ids, 1.0).argmax(-1).tolist() == ids
    assert logprobs == [0.0] * len(ids)


async def test_a_seed_reproduces_tokens_and_other_seeds_do_not(engine: TorchEngine) -> None:
    prompt = prompts(1, 3)[0]
    first = await generate(engine, prompt, SamplingParams(max_tokens=24, seed=5))
    assert await generate(engine, prompt, SamplingParams(max_tokens=24, seed=5)) == first
    assert await generate(engine, prompt, SamplingParams(max_tokens=24, seed=6)) != first


@pytest.mark.parametrize("order_seed", [0, 1, 2])
async def test_results_do_not_depend_on_the_batch_or_the_order_of_arrival(
    tiny_folder: Path, order_seed: int
) -> None:
    requests = [
        (prompt, SamplingParams(max_tokens=3 + 5 * (index % 5), seed=index, top_p=0.9 if index % 3 else 1.0))
        for index, prompt in enumerate(prompts(14, 4))
    ]
    alone = TorchEngine.load(tiny_folder, max_batch=1, max_context=512, prefix_cache_bytes=1)
    assert alone.batch_invariant
    expected = [await generate(alone, *request) for request in requests]
    await alone.close()
    crowded = TorchEngine.load(tiny_folder, max_batch=6, max_context=512, prefill_rows=48)
    order = list(range(len(requests)))
    rnd = random.Random(order_seed)
    rnd.shuffle(order)

    async def delayed(index: int) -> Result:
        await asyncio.sleep(rnd.random() * 0.1)
        return await generate(crowded, *requests[index])

    results = await asyncio.gather(*(delayed(index) for index in order))
    await crowded.close()
    assert [expected[index] for index in order] == results  # bit for bit


async def test_a_next_turn_reuses_the_prefix_and_gets_the_same_bits(tiny_folder: Path) -> None:
    warm = TorchEngine.load(tiny_folder, max_batch=2, max_context=512)
    cold = TorchEngine.load(tiny_folder, max_batch=2, max_context=512, prefix_cache_bytes=1)
    prompt = list(range(10, 110))
    for turn in range(4):
        params = SamplingParams(max_tokens=20, seed=turn)
        result = await generate(warm, prompt, params)
        assert result == await generate(cold, prompt, params)
        prompt = [*prompt, *result[0], *range(50, 80)]
    await warm.close()
    await cold.close()
    assert cold.stats.prefix_hit_tokens == 0
    assert warm.stats.prefix_hit_tokens >= 0.6 * warm.stats.prompt_tokens
    assert warm.stats.rows < cold.stats.rows


async def test_a_group_with_one_prompt_computes_it_once(engine: TorchEngine) -> None:
    prompt = list(range(3, 163))  # ten pages; the last is not taken, its final token's logits are wanted
    await asyncio.gather(*(generate(engine, prompt, SamplingParams(max_tokens=4, seed=s)) for s in range(4)))
    assert engine.stats.prefix_hit_tokens == 3 * 144


async def test_closing_the_iterator_frees_the_place(tiny_folder: Path) -> None:
    engine = TorchEngine.load(tiny_folder, max_batch=1, max_context=512)
    hog = engine.stream([5, 6, 7], SamplingParams(max_tokens=500, seed=1))
    assert isinstance(await anext(hog), TokenChunk)
    await hog.aclose()
    ids, _ = await asyncio.wait_for(generate(engine, [8, 9], SamplingParams(max_tokens=4, seed=2)), 20)
    assert ids
    assert engine.stats.running == 0
    await engine.close()


async def test_stop_tokens_end_a_completion_and_are_part_of_it(engine: TorchEngine) -> None:
    free, _ = await generate(engine, [5, 6, 7], SamplingParams(max_tokens=12, seed=3))
    stop = free[4]
    chunks = [
        chunk
        async for chunk in engine.stream(
            [5, 6, 7], SamplingParams(max_tokens=12, seed=3, stop_token_ids=(stop,))
        )
    ]
    ids = [token for chunk in chunks for token in chunk.token_ids]
    assert ids == free[: free.index(stop) + 1]
    assert [chunk.finish_reason for chunk in chunks][-1] == "stop"


async def test_a_full_context_ends_with_length_and_an_overfull_one_is_refused(engine: TorchEngine) -> None:
    ids, _ = await generate(engine, [5] * 509, SamplingParams(max_tokens=50, seed=1))
    assert len(ids) <= 3
    with pytest.raises(ContextOverflowError, match="512"):
        await generate(engine, [5] * 512, SamplingParams())


@pytest.mark.parametrize("prompt", [[], [-1], [10**6]])
async def test_impossible_prompts_are_refused(engine: TorchEngine, prompt: list[int]) -> None:
    with pytest.raises(UsageError):
        await generate(engine, prompt, SamplingParams())


async def test_new_weights_change_output_and_version_and_forget_the_prefixes(
    engine: TorchEngine, tiny_folder: Path, tmp_path: Path
) -> None:
    prompt, params = list(range(3, 60)), SamplingParams(max_tokens=16, seed=1)
    before = await generate(engine, prompt, params)
    other = make_tiny_model(
        tmp_path / "other", ["x"], vocab_size=300, hidden=64, layers=2, heads=6, moe_intermediate=64
    )
    with pytest.raises(EngineError, match="fit"):
        await engine.update_weights(other, 1)
    state = {
        name: value + 0.02 * torch.randn(value.shape, generator=torch.Generator().manual_seed(0))
        for name, value in AutoModelForCausalLM.from_pretrained(tiny_folder).state_dict().items()
        if name != "lm_head.weight"
    }
    await engine.update_weights(state, 7)
    chunks = [chunk async for chunk in engine.stream(prompt, params)]
    assert {chunk.weight_version for chunk in chunks} == {7}
    assert engine.weight_version == 7
    assert [token for chunk in chunks for token in chunk.token_ids] != before[0]
    assert engine.stats.prefix_hit_tokens == 0
    await engine.update_weights(tiny_folder, 8)
    assert await generate(engine, prompt, params) == before


async def test_requests_in_flight_finish_on_the_old_weights(engine: TorchEngine, tiny_folder: Path) -> None:
    params = SamplingParams(max_tokens=60, seed=3)
    stream = engine.stream([5, 6, 7], params)
    ids = list((await anext(stream)).token_ids)
    state = {k: v * 0.5 for k, v in AutoModelForCausalLM.from_pretrained(tiny_folder).state_dict().items()}
    await engine.update_weights(state, 1)
    chunks = [chunk async for chunk in stream]
    assert {chunk.weight_version for chunk in chunks} == {0}
    ids += [token for chunk in chunks for token in chunk.token_ids]
    await engine.update_weights(tiny_folder, 2)
    assert ids == (await generate(engine, [5, 6, 7], params))[0]


async def test_a_cancelled_update_changes_nothing_and_the_engine_goes_on(
    engine: TorchEngine, tiny_folder: Path
) -> None:
    params = SamplingParams(max_tokens=60, seed=3)
    stream = engine.stream([5, 6, 7], params)
    await anext(stream)  # running, so the update has to wait
    state = {k: v * 0.5 for k, v in AutoModelForCausalLM.from_pretrained(tiny_folder).state_dict().items()}
    update = asyncio.create_task(engine.update_weights(state, 1))
    await asyncio.sleep(0)
    update.cancel()
    with pytest.raises(asyncio.CancelledError):
        await update
    assert [chunk async for chunk in stream][-1].weight_version == 0
    assert (await asyncio.wait_for(generate(engine, [5, 6, 7], params), 20))[0]
    assert engine.weight_version == 0


async def test_missing_weights_are_refused(engine: TorchEngine, tiny_folder: Path) -> None:
    state = AutoModelForCausalLM.from_pretrained(tiny_folder).state_dict()
    del state["model.norm.weight"]
    with pytest.raises(EngineError, match=r"model\.norm\.weight"):
        await engine.update_weights(state, 1)
    assert engine.weight_version == 0


async def test_a_closed_engine_fails_its_requests(tiny_folder: Path) -> None:
    engine = TorchEngine.load(tiny_folder, max_batch=1, max_context=8192, stream_interval=1)
    # Greedy, so that no stop token is drawn by chance, and long enough to be under way at the close.
    stream = engine.stream([5], SamplingParams(temperature=0, max_tokens=8000))
    assert (await anext(stream)).finish_reason is None
    await engine.close()
    with pytest.raises(EngineError):
        async for _ in stream:
            pass
    with pytest.raises(EngineError, match="closed"):
        await generate(engine, [5], SamplingParams())
