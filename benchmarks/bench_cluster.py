"""The same sandboxes on Docker (Podman) and Kubernetes, beside the engines' own ways in and a bare pod.

python benchmarks/bench_cluster.py --out cluster.json

Needs root on Debian: it brings up tools/devcluster and takes it down unless somebody else holds it. No
REST service lies between: the client speaks to sandboxd.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench_env import bench_exec, bench_lifetime, bench_parallel_start, summary
from machine import machine
from orchard_core.env import Provider, Sandbox, SandboxSpec, open_provider
from orchard_core.env.snapshots import fork

ROOT = Path(__file__).resolve().parent.parent
IMAGE = "orchard.local/base:dev"
MIB = 1 << 20
Row = dict[str, float | int]


def tool(*arguments: str) -> str:
    """A line of tools/devcluster or tools/images; ends the benchmark with its words when it fails."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


async def commands_per_s(provider: Provider, width: int, seconds: float) -> Row:
    """`true` in `width` sandboxes, one command at a time in each."""
    sandboxes = await asyncio.gather(*(provider.create(SandboxSpec()) for _ in range(width)))
    end = time.perf_counter() + seconds

    async def work(sandbox: Sandbox) -> list[float]:
        took = []
        while (begin := time.perf_counter()) < end:
            await sandbox.exec(["/bin/true"])
            took.append(time.perf_counter() - begin)
        return took

    took = [one for list_ in await asyncio.gather(*map(work, sandboxes)) for one in list_]
    await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
    return {**summary(took), "per_s": round(len(took) / seconds, 1)}


async def transfer(provider: Provider, size: int) -> Row:
    """One file in and out, in MB/s (10^6)."""

    async def source() -> Any:
        for _ in range(size // MIB):
            yield b"x" * MIB

    async with await provider.create(SandboxSpec()) as sandbox:
        await sandbox.exec(["/bin/true"])
        begin = time.perf_counter()
        await sandbox.write_stream("/tmp/f", source())
        middle = time.perf_counter()
        got = 0
        async for data in sandbox.read_stream("/tmp/f"):
            got += len(data)
        assert got == size
        return {
            "bytes": size,
            "up_mb_s": round(size / 1e6 / (middle - begin), 1),
            "down_mb_s": round(size / 1e6 / (time.perf_counter() - middle), 1),
        }


async def forks(provider: Provider, rounds: int) -> Row:
    """One fork of a sandbox in which 10 MiB were written."""
    took = []
    async with await provider.create(SandboxSpec()) as sandbox:
        await sandbox.exec("head -c 10485760 /dev/urandom > big")
        for _ in range(rounds):
            begin = time.perf_counter()
            (made,) = await fork(sandbox, provider, 1)
            took.append(time.perf_counter() - begin)
            await made.close()
    return summary(took)


async def footprint(provider: Provider) -> Row:
    """sandboxd's resident memory after some commands."""
    async with await provider.create(SandboxSpec()) as sandbox:
        for _ in range(20):
            await sandbox.exec(["/bin/true"])
        return {"rss_mib": round((await sandbox.statistics()).rss_bytes / MIB, 1)}


async def bench_provider(provider: Provider, rounds: int) -> dict[str, Row]:
    results: dict[str, Row] = dict(await bench_lifetime(provider, max(rounds // 20, 5)))
    results["start_16_at_once"] = await bench_parallel_start(provider, 16)
    results |= await bench_exec(provider, rounds)
    results["exec_16_sandboxes"] = await commands_per_s(provider, 16, 5.0)
    results["transfer_1_mib"] = await transfer(provider, MIB)
    results["transfer_256_mib"] = await transfer(provider, 256 * MIB)
    results["fork_10_mib"] = await forks(provider, max(rounds // 20, 3))
    results["sandboxd"] = await footprint(provider)
    return results


def timed(command: list[str], rounds: int) -> Row:
    took = []
    for _ in range(rounds):
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        took.append(time.perf_counter() - begin)
    return summary(took)


def bench_peers(kubeconfig: str, rounds: int) -> dict[str, Row]:
    """The engines' own exec, as a new process of their command line, and a bare pod from apply to Ready."""
    kubectl = ["kubectl", "--kubeconfig", kubeconfig]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "bench-bare"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {"name": "c", "image": IMAGE, "imagePullPolicy": "Never", "command": ["sleep", "600"]}
            ],
        },
    }
    starts = []
    results: dict[str, Row] = {}
    for round_ in range(5):
        begin = time.perf_counter()
        subprocess.run(
            [*kubectl, "apply", "-f", "-"],
            input=json.dumps(pod),
            text=True,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        subprocess.run(
            [*kubectl, "wait", "--for=condition=Ready", "pod/bench-bare", "--timeout=60s"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        starts.append(time.perf_counter() - begin)
        if round_ == 0:
            results["kubectl_exec"] = timed([*kubectl, "exec", "bench-bare", "--", "/bin/true"], rounds // 10)
        subprocess.run(
            [*kubectl, "delete", "pod", "bench-bare", "--wait=true"], check=True, stdout=subprocess.DEVNULL
        )
    results["bare_pod_start"] = summary(starts)
    podman = [sys.executable, str(ROOT / "tools/devcluster"), "podman"]
    subprocess.run(
        [*podman, "run", "-d", "--name", "bench", "--network", "none", IMAGE, "sleep", "600"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    try:
        results["podman_exec"] = timed([*podman, "exec", "bench", "/bin/true"], rounds // 10)
    finally:
        subprocess.run([*podman, "rm", "-f", "-t", "0", "bench"], check=True, stdout=subprocess.DEVNULL)
    return results


async def run(rounds: int) -> dict[str, Any]:
    holder = f"--for={os.getpid()}"
    kubeconfig = tool("tools/devcluster", "up", holder)
    docker_host = tool("tools/devcluster", "podman-up", holder)
    tool("tools/images", "load")
    results: dict[str, Any] = {}
    opened: dict[str, Callable[[], Provider]] = {
        "bubblewrap": lambda: open_provider("bubblewrap"),
        "docker": lambda: open_provider("docker", {"url": docker_host, "image": IMAGE}),
        "kubernetes": lambda: open_provider("kubernetes", {"kubeconfig": kubeconfig, "image": IMAGE}),
    }
    try:
        for name, make in opened.items():
            provider = make()
            closing: Callable[[], Awaitable[None]] = provider.close
            try:
                results[name] = await bench_provider(provider, rounds)
            finally:
                await closing()
        results["peers"] = await asyncio.to_thread(bench_peers, kubeconfig, rounds)
    finally:
        tool("tools/devcluster", "down", holder)
    return {"benchmark": "cluster", "machine": machine(), "results": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    report = asyncio.run(run(options.rounds))
    for name, rows in report["results"].items():
        print(name)
        for what, row in rows.items():
            print(f"  {what:20}" + "  ".join(f"{key} {value}" for key, value in row.items()))
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
