"""Runs one rollout of this domain: a real sandbox, a real harness, and a model that says given things.

usage: python try_it.py [COMMAND]      COMMAND is what the model runs before it submits
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from orchard_core.domain import load_domain
from orchard_core.engine.protocol import ChatRequest
from orchard_core.engine.scripted import ScriptedEngine
from orchard_core.env import open_provider
from orchard_core.harness.protocol import HarnessLimits
from orchard_core.harness.react import ReactHarness
from orchard_core.harness.style import SUBMIT_MARK
from orchard_core.proxy import RecordingProxy
from orchard_core.rollout.runner import RolloutRequest, RolloutRunner
from orchard_core.trajectory.types import Lineage, Trajectory

ADD_UP = "awk '{ sum += $1 } END { print sum }' numbers.txt > sum.txt"


def say(command: str) -> dict[str, Any]:
    """A reply of the model that calls the shell tool."""
    call = {"name": "bash", "arguments": json.dumps({"command": command})}
    return {"content": "", "tool_calls": [{"id": "call", "type": "function", "function": call}]}


async def roll_out(command: str) -> Trajectory:
    """One rollout of the first training task, in which the model runs `command` and submits."""

    def model(request: ChatRequest) -> dict[str, Any]:
        first = not any(message["role"] == "assistant" for message in request.messages)
        return say(command) if first else say(f"echo {SUBMIT_MARK}")

    domain = load_domain("sums")
    provider = open_provider("bubblewrap", {})
    proxy = RecordingProxy(ScriptedEngine(model))
    await proxy.start()
    try:
        request = RolloutRequest(
            id="try-it",
            task=domain.tasks("train", {"limit": 1})[0],
            harness=ReactHarness(),
            lineage=Lineage("example", "try-it"),
            limits=HarnessLimits(max_turns=4, timeout_s=60),
        )
        return await RolloutRunner(domain, provider, proxy).run(request)
    finally:
        await proxy.close()
        await provider.close()


def main() -> None:
    trajectory = asyncio.run(roll_out(sys.argv[1] if len(sys.argv) > 1 else ADD_UP))
    outcome, reward = trajectory.outcome, trajectory.reward
    print(
        f"{trajectory.task_id}: {outcome.status} ({outcome.cause}), {len(trajectory.calls)} calls, {reward.verdict}"
    )


if __name__ == "__main__":
    main()
