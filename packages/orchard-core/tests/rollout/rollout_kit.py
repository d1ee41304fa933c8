"""A small domain and a place to run its rollouts: real sandboxes, a real proxy, a scripted model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchard_core.domain.types import Reward, Split, Task
from orchard_core.engine.protocol import ChatRequest, Engine
from orchard_core.engine.scripted import ScriptedEngine
from orchard_core.env.errors import SandboxStartError
from orchard_core.env.handle import Provider, Sandbox
from orchard_core.env.spec import SandboxSpec
from orchard_core.harness.protocol import Harness, HarnessLimits
from orchard_core.harness.react import ReactHarness
from orchard_core.proxy import RecordingProxy, Session, SessionPolicy
from orchard_core.rollout.runner import RolloutRequest, RolloutRunner
from orchard_core.trajectory.types import Lineage

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
SECRET_ANSWER = "hello-payload-canary"
Reply = Mapping[str, Any]
Policy = Callable[[ChatRequest], Any]


def bash(command: str) -> Reply:
    arguments = json.dumps({"command": command})
    return {
        "content": "",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": arguments}}
        ],
    }


def in_order(replies: Sequence[Reply]) -> Policy:
    """A model that says these things, by the number of turns that the request shows. The last repeats."""

    def policy(request: ChatRequest) -> Reply:
        turn = [message["role"] for message in request.messages].count("assistant")
        return replies[min(turn, len(replies) - 1)]

    return policy


SOLVE = in_order([bash("cat note"), bash("cat note > answer"), bash(SUBMIT)])


def task(task_id: str = "copy") -> Task:
    return Task(
        task_id, "files", "Copy note to answer.", payload={"answer": "noted", "canary": SECRET_ANSWER}
    )


@dataclass
class FilesDomain:
    """The agent must leave `answer` with the text of `note`; graded in a fresh sandbox."""

    name: str = "files"
    grading_fails: bool = False

    def tasks(self, split: Split, options: Mapping[str, Any]) -> Sequence[Task]:
        return [task()]

    async def prepare(self, task: Task, sandbox: Sandbox) -> None:
        await sandbox.write_file("/workspace/note", task.payload["answer"].encode())

    async def collect(self, task: Task, sandbox: Sandbox) -> Mapping[str, bytes]:
        return {"answer": await sandbox.read_file("/workspace/answer")}

    async def grade(self, task: Task, result: Mapping[str, bytes], provider: Provider) -> Reward:
        if self.grading_fails:
            raise SandboxStartError("no more room")
        async with await provider.create(SandboxSpec()) as sandbox:
            await sandbox.write_file("/workspace/answer", result["answer"])
            done = await sandbox.exec(["grep", "-qx", task.payload["answer"], "/workspace/answer"])
        return Reward.success() if done.ok else Reward.failure(reason="another text")


class WatchedProvider:
    """A real provider that remembers the sandboxes it made."""

    def __init__(self, inner: Provider) -> None:
        self.inner = inner
        self.made: list[Sandbox] = []

    @property
    def name(self) -> str:
        return self.inner.name

    async def create(self, spec: SandboxSpec) -> Sandbox:
        self.made.append(await self.inner.create(spec))
        return self.made[-1]

    async def close(self) -> None:
        await self.inner.close()


class WatchedProxy(RecordingProxy):
    """A real proxy that remembers its sessions."""

    def open_session(
        self, rollout_id: str, policy: SessionPolicy, *, engine: Engine | None = None
    ) -> Session:
        session = super().open_session(rollout_id, policy, engine=engine)
        self.sessions = [*getattr(self, "sessions", []), session]
        return session


@dataclass
class Place:
    """Everything a rollout needs. `model` may be changed between rollouts."""

    provider: WatchedProvider
    proxy: WatchedProxy
    domain: FilesDomain = field(default_factory=FilesDomain)

    @property
    def runner(self) -> RolloutRunner:
        return RolloutRunner(self.domain, self.provider, self.proxy)

    def request(
        self,
        policy: Policy = SOLVE,
        rollout_id: str = "r1",
        harness: Harness | None = None,
        limits: HarnessLimits | None = None,
        session: SessionPolicy | None = None,
    ) -> RolloutRequest:
        return RolloutRequest(
            id=rollout_id,
            task=task(),
            harness=harness or ReactHarness(),
            lineage=Lineage("run", "test"),
            limits=limits or HarnessLimits(timeout_s=30),
            policy=session or SessionPolicy(),
            engine=ScriptedEngine(policy),
        )
