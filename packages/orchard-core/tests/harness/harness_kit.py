"""Scripts for a scripted model, and a way to run the ReAct program on this machine against a real proxy."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchard_core.domain.types import Task
from orchard_core.engine.protocol import ChatRequest
from orchard_core.engine.scripted import ScriptedEngine
from orchard_core.harness import react_agent
from orchard_core.harness.protocol import HarnessLimits, ModelEndpoint
from orchard_core.harness.react import CONFIG, ReactHarness
from orchard_core.proxy import RecordingProxy, SealedSession, SessionPolicy

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
Reply = Mapping[str, Any]


def call(name: str, arguments: Any, call_id: str = "call_1") -> dict[str, Any]:
    """A tool call; arguments that are a string are sent as they are."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def bash(command: str) -> Reply:
    return {"content": "", "tool_calls": [call("bash", {"command": command})]}


def say(text: str) -> Reply:
    return {"content": text}


def in_order(replies: Sequence[Reply]) -> Callable[[ChatRequest], Reply]:
    """A model that says these things, by the number of turns that the request shows. The last repeats."""

    def policy(request: ChatRequest) -> Reply:
        turn = [message["role"] for message in request.messages].count("assistant")
        return replies[min(turn, len(replies) - 1)]

    return policy


@dataclass(frozen=True)
class Run:
    """How a run of the program ended: exit code, result file, the proxy's record, stderr."""

    code: int
    result: dict[str, Any]
    sealed: SealedSession
    stderr: str

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of the last request that the model answered."""
        return list(self.sealed.calls[-1].request["messages"])

    @property
    def tool_results(self) -> list[str]:
        return [message["content"] for message in self.messages if message["role"] == "tool"]


async def run_react(
    folder: Path,
    replies: Sequence[Reply] | Callable[[ChatRequest], Any],
    harness: ReactHarness | None = None,
    limits: HarnessLimits | None = None,
    policy: SessionPolicy | None = None,
) -> Run:
    """Run the ReAct program as a process in `folder` against a real proxy with a scripted model."""
    harness = harness or ReactHarness()
    engine = ScriptedEngine(replies if callable(replies) else in_order(replies))
    proxy = RecordingProxy(engine)
    await proxy.start()
    try:
        session = proxy.open_session("r1", policy or SessionPolicy())
        host, port = proxy.address
        endpoint = ModelEndpoint(f"http://{host}:{port}{session.base_path}", session.secret, "scripted")
        launch = harness.launch(Task("t", "test", "do it"), endpoint, limits or HarnessLimits())
        config, result = folder / "config.json", folder / "result.json"
        config.write_bytes(launch.files[CONFIG])
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(react_agent.__file__), str(config), str(result),
            cwd=folder, env={"PATH": "/usr/bin:/bin", **launch.env}, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, stderr = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode is not None
        told = json.loads(result.read_text()) if result.exists() else {}
        return Run(process.returncode, told, session.seal(), stderr.decode())
    finally:
        await proxy.close()
