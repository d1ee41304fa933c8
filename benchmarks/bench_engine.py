"""Speed of the built-in engine with the tiny model: decoding, agent turns, start-up and event-loop delay.

    python benchmarks/bench_engine.py --out engine.json

Every figure is a median of `--repeats` runs. `*_tok_s` count sampled tokens a second, `*_tok_cpu_s` a
second of CPU time (on a machine shared with others the steadier figure).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from machine import machine
from orchard_core.engine.protocol import SamplingParams
from orchard_core.engine.tiny import make_tiny_model
from orchard_core.engine.torch_engine import TorchEngine

CONCURRENCY = 16
TURNS = 5
DECODED = 100


def corpus() -> list[str]:
    rnd = random.Random(0)
    names = ["count", "total", "items", "index", "value", "limit", "result", "parse", "merge", "split"]
    return [
        f"def {rnd.choice(names)}_{rnd.choice(names)}({rnd.choice(names)}, {rnd.choice(names)}):\n"
        f"    if {rnd.choice(names)} <= {rnd.randrange(100)}:\n        return {rnd.choice(names)} // 2\n"
        for _ in range(2000)
    ]


def prompt(rnd: random.Random, vocab: int, length: int) -> list[int]:
    return [rnd.randrange(3, vocab) for _ in range(length)]


async def sample(engine: TorchEngine, ids: list[int], count: int, seed: int) -> list[int]:
    """One request's tokens; a random model rarely samples a stop token early."""
    out: list[int] = []
    async for chunk in engine.stream(ids, SamplingParams(max_tokens=count, seed=seed)):
        out += chunk.token_ids
    return out


async def decode(engine: TorchEngine, vocab: int, length: int) -> tuple[float, float]:
    """All places decode after cached prompts of `length` tokens; tokens a second, and a CPU second."""
    rnd = random.Random(length)
    prompts = [prompt(rnd, vocab, length) for _ in range(CONCURRENCY)]
    await asyncio.gather(*(sample(engine, ids, 1, 0) for ids in prompts))  # fills the prefix cache
    started, cpu = time.perf_counter(), time.process_time()
    outs = await asyncio.gather(*(sample(engine, ids, DECODED, seed) for seed, ids in enumerate(prompts)))
    count = sum(map(len, outs))
    return count / (time.perf_counter() - started), count / (time.process_time() - cpu)


async def agent_turns(engine: TorchEngine, vocab: int) -> tuple[float, float, float]:
    """Sessions of 4 groups: a shared prompt of 300 tokens, then 40 sampled and 80 new tokens a turn.

    Returns sampled tokens a second and a CPU second, and the share of prompt tokens found in the cache.
    """
    rnd = random.Random(time.perf_counter())
    shared = [prompt(rnd, vocab, 300) for _ in range(4)]
    before = engine.stats

    async def session(index: int) -> int:
        ids, sampled = list(shared[index % 4]), 0
        for turn in range(TURNS):
            out = await sample(engine, ids, 40, index * TURNS + turn)
            sampled += len(out)
            ids = [*ids, *out, *prompt(rnd, vocab, 80)]
        return sampled

    started, cpu = time.perf_counter(), time.process_time()
    counts = await asyncio.gather(*(session(index) for index in range(CONCURRENCY)))
    elapsed, cpu = time.perf_counter() - started, time.process_time() - cpu
    after = engine.stats
    hits = after.prefix_hit_tokens - before.prefix_hit_tokens
    return sum(counts) / elapsed, sum(counts) / cpu, hits / (after.prompt_tokens - before.prompt_tokens)


async def loop_delays(work: Callable[[], Awaitable[object]]) -> list[float]:
    """How late a 2 ms timer of the same event loop fires while the engine works, in milliseconds."""
    task = asyncio.ensure_future(work())
    delays = []
    while not task.done():
        started = time.perf_counter()
        await asyncio.sleep(0.002)
        delays.append((time.perf_counter() - started - 0.002) * 1e3)
    await task
    return sorted(delays)


async def measure(folder: Path, threads: int, repeats: int) -> dict[str, float]:
    started = time.perf_counter()
    engine = TorchEngine.load(folder, max_batch=CONCURRENCY, threads=threads)
    load_s = time.perf_counter() - started
    vocab = len(engine.renderer.tokenizer)
    figures: dict[str, list[float]] = {}
    for _ in range(repeats):
        turns, turns_cpu, share = await agent_turns(engine, vocab)
        for length in (100, 500, 1000):
            rate, cpu_rate = await decode(engine, vocab, length)
            figures.setdefault(f"decode_context_{length}_tok_s", []).append(rate)
            figures.setdefault(f"decode_context_{length}_tok_cpu_s", []).append(cpu_rate)
        delays = await loop_delays(lambda: decode(engine, vocab, 500))
        for name, value in {
            "agent_turns_tok_s": turns,
            "agent_turns_tok_cpu_s": turns_cpu,
            "agent_turns_prefix_hit_share": share,
            "loop_delay_p50_ms": delays[len(delays) // 2],
            "loop_delay_p99_ms": delays[len(delays) * 99 // 100],
        }.items():
            figures.setdefault(name, []).append(value)
    invariant = engine.batch_invariant
    started = time.perf_counter()
    await engine.update_weights(folder, 1)
    update_s = time.perf_counter() - started
    await engine.close()
    medians = {name: round(statistics.median(values), 3) for name, values in figures.items()}
    return {
        **medians,
        "load_s": round(load_s, 3),
        "update_weights_s": round(update_s, 3),
        "batch_invariant": invariant,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    note = machine()
    with tempfile.TemporaryDirectory() as folder:
        make_tiny_model(folder, corpus())
        figures = asyncio.run(measure(Path(folder), arguments.threads, arguments.repeats))
    report = {
        "concurrency": CONCURRENCY,
        "threads": arguments.threads,
        "machine": note,
        **figures,
    }
    arguments.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
