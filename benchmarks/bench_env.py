"""How long a sandbox takes to start and to close, and what an exec round trip costs.

python benchmarks/bench_env.py --out env.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from machine import machine
from orchard_core.env import Provider, SandboxSpec, open_provider


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile; `share` in 0..1."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summary(seconds: Sequence[float]) -> dict[str, float | int]:
    """p50, p95 and p99 in milliseconds."""
    shares = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99}
    return {
        "n": len(seconds),
        **{name: round(percentile(seconds, share) * 1e3, 3) for name, share in shares.items()},
    }


async def bench_lifetime(provider: Provider, rounds: int) -> dict[str, dict[str, float | int]]:
    """`create` to a handle that is ready, and `close` until nothing is left; the first round warms up."""
    starts, closes = [], []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        sandbox = await provider.create(SandboxSpec())
        ready = time.perf_counter()
        await sandbox.close()
        starts.append(ready - begin)
        closes.append(time.perf_counter() - ready)
    return {"start": summary(starts[1:]), "close": summary(closes[1:])}


async def bench_parallel_start(
    provider: Provider, width: int, spec: SandboxSpec | None = None
) -> dict[str, float | int]:
    """Each of `width` starts at once, as its caller sees it."""

    async def one() -> float:
        begin = time.perf_counter()
        sandbox = await provider.create(spec or SandboxSpec())
        elapsed = time.perf_counter() - begin
        await sandbox.close()
        return elapsed

    return summary(await asyncio.gather(*(one() for _ in range(width))))


async def bench_exec(provider: Provider, rounds: int) -> dict[str, dict[str, float | int]]:
    """Round trips of the smallest program, by argv and through the shell, and of a 1 KiB file."""
    results: dict[str, list[float]] = {"exec_argv": [], "exec_shell": [], "write_file": [], "read_file": []}
    async with await provider.create(SandboxSpec()) as sandbox:
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "exec_argv": lambda: sandbox.exec(["/bin/true"]),
            "exec_shell": lambda: sandbox.exec("exit 0"),
            "write_file": lambda: sandbox.write_file("f", b"x" * 1024),
            "read_file": lambda: sandbox.read_file("f"),
        }
        for name, call in calls.items():
            for _ in range(rounds + 5):
                begin = time.perf_counter()
                await call()
                results[name].append(time.perf_counter() - begin)
    return {name: summary(values[5:]) for name, values in results.items()}


async def run(rounds: int) -> dict[str, Any]:
    provider = open_provider("bubblewrap")
    try:
        results: dict[str, Any] = await bench_lifetime(provider, max(rounds // 4, 5))
        results["start_16_at_once"] = await bench_parallel_start(provider, 16)
        results |= await bench_exec(provider, rounds)
    finally:
        await provider.close()
    return {"benchmark": "env", "machine": machine(), "results": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    report = asyncio.run(run(options.rounds))
    print(f"{'':18}{'n':>6}{'p50 ms':>10}{'p95 ms':>10}")
    for name, row in report["results"].items():
        print(f"{name:18}{row['n']:6}{row['p50_ms']:10.2f}{row['p95_ms']:10.2f}")
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
