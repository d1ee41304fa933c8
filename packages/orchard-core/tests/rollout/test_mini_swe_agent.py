"""The real mini-swe-agent in real sandboxes, beside react."""

from __future__ import annotations

from typing import Any

import pytest
from rollout_kit import SECRET_ANSWER, SOLVE, SUBMIT, Place, Policy, bash, in_order

from orchard_core.engine.errors import EngineError
from orchard_core.engine.protocol import ChatRequest
from orchard_core.harness.mini_swe_agent import MiniSweAgentHarness
from orchard_core.harness.protocol import Harness, HarnessLimits
from orchard_core.harness.react import ReactHarness
from orchard_core.harness.style import ChatStyle
from orchard_core.proxy import SessionPolicy
from orchard_core.proxy.canonical import chain
from orchard_core.trajectory.types import Trajectory

pytestmark = [pytest.mark.slow, pytest.mark.needs_index]

ODD_STYLE = ChatStyle(
    system='Fix {{ it }}; {% raw %} "quotes" \\n and ünïcode \N{GRINNING FACE}\n',
    instruction="<task>{instruction}</task>\n\n",
    output_head=20,
    output_tail=20,
)


async def run(place: Place, policy: Policy, harness: Harness, **more: Any) -> Trajectory:
    limits = more.pop("limits", HarnessLimits(timeout_s=120, command_timeout_s=1))
    return await place.runner.run(place.request(policy, "mini", harness, limits, **more))


async def test_it_solves_a_task_with_its_own_prompts(place: Place) -> None:
    trajectory = await run(place, SOLVE, MiniSweAgentHarness())
    assert (trajectory.outcome.status, trajectory.outcome.cause) == ("completed", "submitted")
    assert (trajectory.reward.verdict, trajectory.harness) == ("success", "mini-swe-agent@2.4.6")
    system, user = trajectory.calls[0].request["messages"]
    assert system["content"] == "You are a helpful assistant that can interact with a computer.\n".strip()
    assert "Please solve this issue: Copy note to answer." in user["content"]


COMMANDS = [
    "echo hello; exit 3",
    "sleep 5",
    "seq 100",
    "true",
    "printf 'a\\r\\nb'",
    "echo ü >&2",
    SUBMIT,
]


async def test_the_model_sees_the_same_chat_as_under_react(place: Place) -> None:
    """Tools and messages are equal call by call, so weights trained under one serve the other."""
    model = in_order([bash(command) for command in COMMANDS])
    mini = await run(place, model, MiniSweAgentHarness(ODD_STYLE))
    react = await run(place, model, ReactHarness(ODD_STYLE))
    assert len(mini.calls) == len(react.calls) == len(COMMANDS)
    for one, other in zip(mini.calls, react.calls, strict=True):
        assert one.request["tools"] == other.request["tools"]
        texts = [[m.get("content") or "" for m in call.request["messages"]] for call in (one, other)]
        assert texts[0] == texts[1]
        digests = [chain(call.request["tools"], call.request["messages"]) for call in (one, other)]
        assert digests[0] == digests[1]


async def test_limits_and_failures_are_told_apart(place: Place) -> None:
    style = MiniSweAgentHarness(ChatStyle())
    endless = in_order([bash("cat note > answer")])
    capped = await run(place, endless, style, limits=HarnessLimits(max_turns=2, timeout_s=60))
    assert (capped.outcome.status, capped.outcome.cause, len(capped.calls)) == ("truncated", "step_limit", 2)
    budget = await run(place, endless, style, session=SessionPolicy(max_calls=1))
    assert (budget.outcome.status, budget.outcome.cause) == ("truncated", "max_calls")
    talk = await run(place, in_order([{"content": "hello"}]), style)
    assert (talk.outcome.status, talk.outcome.cause) == ("completed", "format_error")

    def fail(request: ChatRequest) -> Any:
        raise EngineError("out of memory")

    broken = await run(place, fail, style)
    assert (broken.outcome.status, broken.outcome.cause) == ("aborted", "model_calls")


async def test_commands_see_neither_the_secret_nor_the_harness_packages(place: Place) -> None:
    look = "env; tr '\\0' '\\n' < /proc/$PPID/environ; echo $?; python3 -c 'import litellm'"
    trajectory = await run(place, in_order([bash(look), bash(SUBMIT)]), MiniSweAgentHarness(ChatStyle()))
    seen = trajectory.calls[-1].request["messages"][-1]["content"]
    assert "Permission denied" in seen
    assert "No module named 'litellm'" in seen
    assert place.proxy.sessions[0].secret not in seen
    assert SECRET_ANSWER not in seen
