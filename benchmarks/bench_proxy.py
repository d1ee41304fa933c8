"""What the recording proxy adds to a model call: latency against calling the engine directly.

The engine is instantaneous, so all that is measured is the proxy, HTTP and the client. The client lives in its own
process and holds growing conversations with tool results, as a harness does: every call after the first
extends the recorded ids. Each session pauses between its calls, so that latency is not queueing; `calls_per_s`
comes from a second pass without pauses.

    python benchmarks/bench_proxy.py --out benchmarks/baselines/proxy.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp

from machine import machine
from orchard_core.engine.protocol import Message, SamplingParams, TokenChunk, Tool
from orchard_core.proxy import RecordingProxy, SessionPolicy

STOP = 0
REPLY = b"I will look at the file and then run the tests once more." + bytes([STOP])
CHUNKS = 8
SYSTEM = "You are a careful engineer. " * 150
TOOL_RESULT = "line of output from a command\n" * 20
TURNS = 25
PAUSE_S = 0.4


class ByteRenderer:
    """Bytes as tokens, with turns like those of common templates."""

    stop_token_ids = (STOP,)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        turns = "".join(f"<|{message['role']}|>{message['content']}\n" for message in messages)
        return list(f"{turns}<|assistant|>".encode())

    def render_suffix(self, new_messages: Sequence[Message]) -> list[int]:
        return [ord("\n"), *self.render(new_messages, ())]

    def render_completion(self, message: Message) -> list[int]:
        return [*str(message["content"]).encode(), STOP]

    def parse_completion(self, token_ids: Sequence[int]) -> dict[str, Any]:
        return {"role": "assistant", "content": self.decode([one for one in token_ids if one != STOP])}

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode("utf-8", "replace")


class InstantEngine:
    """Gives the same completion in a few chunks without waiting."""

    model, weight_version, max_context = "instant", 0, 10**9
    renderer = ByteRenderer()

    async def stream(self, prompt_ids: Sequence[int], params: SamplingParams) -> AsyncIterator[TokenChunk]:
        size = -(-len(REPLY) // CHUNKS)
        for start in range(0, len(REPLY), size):
            ids = tuple(REPLY[start : start + size])
            last = start + size >= len(REPLY)
            yield TokenChunk(ids, (-0.1,) * len(ids), "stop" if last else None)

    async def close(self) -> None:
        pass


def conversation(turn: int) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Fix the bug."}]
    for _ in range(turn):
        messages.append({"role": "assistant", "content": REPLY[:-1].decode()})
        messages.append({"role": "tool", "content": TOOL_RESULT})
    return messages


async def direct_latencies(calls: int) -> list[float]:
    """Seconds of a call that renders the whole prompt and reads the engine itself."""
    engine, taken = InstantEngine(), []
    for at in range(calls):
        messages = conversation(at % TURNS)
        started = time.perf_counter()
        ids = [
            token
            async for chunk in engine.stream(engine.renderer.render(messages, ()), SamplingParams())
            for token in chunk.token_ids
        ]
        engine.renderer.parse_completion(ids)
        taken.append(time.perf_counter() - started)
    return taken


async def one_session(
    http: aiohttp.ClientSession, url: str, secret: str, stream: bool, pause: float
) -> list[float]:
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    taken = []
    await asyncio.sleep(random.uniform(0, pause))
    for turn in range(TURNS):
        body = json.dumps({"model": "m", "messages": conversation(turn), "stream": stream}).encode()
        started = time.perf_counter()
        async with http.post(f"{url}/chat/completions", data=body, headers=headers) as reply:
            data = await reply.read()
        taken.append(time.perf_counter() - started)
        if reply.status != 200 or (stream and not data.endswith(b"data: [DONE]\n\n")):
            raise SystemExit(f"call failed: {reply.status} {data[:200]!r}")
        if pause:
            await asyncio.sleep(random.uniform(0.5, 1.5) * pause)
    return taken


async def run_client(
    sessions: list[tuple[str, str]], stream: bool, pause: float
) -> tuple[list[float], float]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        started = time.perf_counter()
        taken = await asyncio.gather(
            *(one_session(http, url, secret, stream, pause) for url, secret in sessions)
        )
        wall = time.perf_counter() - started
    return [one for session in taken for one in session], wall


def client_process(pipe: Connection) -> None:
    """Serve measurement requests until told to stop."""
    while (job := pipe.recv()) is not None:
        pipe.send(asyncio.run(run_client(*job)))


async def measure(pipe: Connection, count: int, stream: bool, pause: float) -> tuple[list[float], float]:
    proxy = RecordingProxy(InstantEngine())
    await proxy.start()
    host, port = proxy.address
    opened = [proxy.open_session(f"bench-{at}", SessionPolicy()) for at in range(count)]
    pipe.send(([(f"http://{host}:{port}{one.base_path}", one.secret) for one in opened], stream, pause))
    result: tuple[list[float], float] = await asyncio.to_thread(pipe.recv)
    for session in opened:
        modes = [call.prompt_mode for call in session.seal().calls]
        if modes != ["rendered"] + ["extended"] * (TURNS - 1):
            raise SystemExit(f"the proxy did not extend every call: {modes}")
    await proxy.close()
    return result


def quantiles(taken: list[float], base: float) -> dict[str, float]:
    cuts = statistics.quantiles(taken, n=100, method="inclusive")
    return {
        f"added_{name}_ms": round((cuts[at - 1] - base) * 1e3, 3)
        for name, at in (("p50", 50), ("p95", 95), ("p99", 99))
    }


async def benchmark(pipe: Connection, counts: list[int], rounds: int) -> dict[str, Any]:
    await measure(pipe, 2, True, 0.0)
    direct = statistics.median(await direct_latencies(500))
    rows = []
    for stream in (False, True):
        for count in counts:
            taken: list[float] = []
            for _ in range(max(rounds, -(-rounds * 8 // count))):
                taken += (await measure(pipe, count, stream, PAUSE_S if count > 1 else 0.01))[0]
            busy, wall = await measure(pipe, count, stream, 0.0)
            row = {"stream": stream, "sessions": count, "calls": len(taken), **quantiles(taken, direct)}
            rows.append({**row, "calls_per_s": round(len(busy) / wall)})
            print(
                f"{'stream' if stream else 'whole':6} {count:3} sessions: added p50 {row['added_p50_ms']:.2f}  "
                f"p95 {row['added_p95_ms']:.2f}  p99 {row['added_p99_ms']:.2f} ms; {rows[-1]['calls_per_s']} calls/s"
            )
    return {"direct_call_p50_ms": round(direct * 1e3, 3), "turns": TURNS, "pause_s": PAUSE_S, "results": rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--rounds", type=int, default=1, help="repeat each setting this often")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    arguments = parser.parse_args()
    before = machine()
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    client = spawn.Process(target=client_process, args=(there,), daemon=True)
    client.start()
    result = asyncio.run(benchmark(here, arguments.sessions, arguments.rounds))
    here.send(None)
    client.join(10)
    if arguments.out is not None:
        report = {"benchmark": "proxy", "machine": before, **result}
        arguments.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
