"""Whole rollouts: every class of outcome is produced for real."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from rollout_kit import SECRET_ANSWER, SOLVE, SUBMIT, Place, bash, in_order

from orchard_core.engine.errors import EngineError
from orchard_core.engine.protocol import ChatRequest
from orchard_core.env.errors import SandboxGoneError
from orchard_core.harness.protocol import HarnessLimits
from orchard_core.harness.react import ReactHarness
from orchard_core.proxy import SessionPolicy


async def test_a_solved_task_gives_a_whole_trajectory(place: Place) -> None:
    trajectory = await place.runner.run(place.request())
    assert (trajectory.outcome.status, trajectory.outcome.cause) == ("completed", "submitted")
    assert trajectory.reward.verdict == "success"
    assert trajectory.result == {"answer": b"noted"}
    assert [call.index for call in trajectory.calls] == [0, 1, 2]
    assert trajectory.harness == "react@1"
    assert set(trajectory.timings) == {"sandbox_start", "prepare", "harness", "collect", "grade"}
    assert trajectory.started_at < trajectory.finished_at
    assert len(place.provider.made) == 2, "grading must use a sandbox that the agent never saw"


async def test_a_wrong_answer_is_the_agents_failure(place: Place) -> None:
    wrong = in_order([bash("echo wrong > answer"), bash(SUBMIT)])
    trajectory = await place.runner.run(place.request(wrong))
    assert (trajectory.outcome.status, trajectory.reward.verdict) == ("completed", "failure")


async def test_a_missing_result_is_the_agents_failure(place: Place) -> None:
    trajectory = await place.runner.run(place.request(in_order([bash(SUBMIT)])))
    assert (trajectory.outcome.status, trajectory.outcome.cause) == ("completed", "no_result")
    assert trajectory.reward.verdict == "failure"


async def test_format_errors_are_the_agents_failure(place: Place) -> None:
    talk = in_order([bash("cat note > answer"), {"content": "I am done."}])
    trajectory = await place.runner.run(place.request(talk))
    assert (trajectory.outcome.status, trajectory.outcome.cause) == ("completed", "format_error")
    assert trajectory.reward.verdict == "success", "what it left behind is graded all the same"


async def test_the_step_limit_truncates(place: Place) -> None:
    endless = in_order([bash("cat note > answer")])
    request = place.request(endless, limits=HarnessLimits(max_turns=2, timeout_s=30))
    trajectory = await place.runner.run(request)
    assert (trajectory.outcome.status, trajectory.outcome.cause) == ("truncated", "step_limit")
    assert (len(trajectory.calls), trajectory.reward.verdict) == (2, "success")


async def test_the_call_budget_truncates(place: Place) -> None:
    endless = in_order([bash("cat note > answer")])
    trajectory = await place.runner.run(place.request(endless, session=SessionPolicy(max_calls=2)))
    assert (trajectory.outcome.status, trajectory.outcome.cause) == ("truncated", "max_calls")


async def test_time_out_in_a_command_truncates_by_time(place: Place) -> None:
    slow = in_order([bash("cat note > answer"), bash("sleep 60")])
    trajectory = await place.runner.run(place.request(slow, limits=HarnessLimits(timeout_s=1)))
    assert (trajectory.outcome.status, trajectory.outcome.cause) == ("truncated_time", "timeout")
    assert trajectory.result == {"answer": b"noted"}


async def test_time_out_while_the_model_thinks_truncates_by_time(place: Place) -> None:
    async def think(request: ChatRequest) -> Any:
        await asyncio.sleep(60)

    trajectory = await place.runner.run(place.request(think, limits=HarnessLimits(timeout_s=0.5)))
    assert (trajectory.outcome.status, trajectory.outcome.cause) == ("truncated_time", "timeout")
    assert (trajectory.calls, trajectory.reward.verdict) == ((), "failure")


async def test_an_engine_failure_aborts(place: Place) -> None:
    def fail(request: ChatRequest) -> Any:
        raise EngineError("out of memory")

    trajectory = await place.runner.run(place.request(fail))
    assert (trajectory.outcome.status, trajectory.outcome.cause) == ("aborted", "model_calls")
    assert "out of memory" in trajectory.outcome.detail
    assert (trajectory.reward.verdict, trajectory.result) == ("none", {})


async def test_a_sandbox_that_goes_away_aborts(place: Place) -> None:
    async def kill(request: ChatRequest) -> Any:
        await place.provider.made[0].close()
        return bash("true")

    trajectory = await place.runner.run(place.request(kill))
    assert (trajectory.outcome.status, trajectory.outcome.cause) == ("aborted", "sandbox")
    assert trajectory.reward.verdict == "none"


async def test_a_failing_grader_aborts(place: Place) -> None:
    place.domain.grading_fails = True
    trajectory = await place.runner.run(place.request())
    assert (trajectory.outcome.status, trajectory.outcome.cause) == ("aborted", "sandbox")
    assert "no more room" in trajectory.reward.reason


async def test_a_crash_of_the_harness_aborts(place: Place) -> None:
    trajectory = await place.runner.run(place.request(harness=ReactHarness(python="/bin/false")))
    assert (trajectory.outcome.status, trajectory.outcome.cause) == ("aborted", "harness_crash")


async def test_an_agent_that_kills_its_harness_has_failed_by_itself(place: Place) -> None:
    killer = in_order([bash("cat note > answer; kill -9 $PPID")])
    trajectory = await place.runner.run(place.request(killer))
    assert (trajectory.outcome.status, trajectory.outcome.cause) == ("completed", "harness_killed")


def observations(trajectory: Any) -> str:
    return "\n".join(
        message["content"]
        for message in trajectory.calls[-1].request["messages"]
        if message["role"] == "tool"
    )


async def test_nothing_but_the_model_can_be_reached(place: Place) -> None:
    host, port = place.proxy.address
    probe = f"(echo > /dev/tcp/{host}/{port}) 2>/dev/null && echo reached; grep -c : /proc/net/dev"
    model = in_order([bash(f"bash -c '{probe}'"), bash(SUBMIT)])
    trajectory = await place.runner.run(place.request(model))
    assert observations(trajectory).split() == ["1"], "only the loopback interface may exist"


async def test_the_agent_finds_neither_payload_nor_secret(place: Place) -> None:
    # The command names only parts of what it looks for, so that it can't find itself.
    look = (
        "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'"
        " | grep -ai -e '[p]ayload-canary' -e key -e secret -e token;"
        " find / -xdev -type f -newermt '-1 hour' -size -1000k 2>/dev/null"
        " | grep -v -e ^/proc -e ^/sys | xargs -d '\\n' grep -ahs -e '[p]ayload-canary'; echo looked"
    )
    found = "echo hello-payload'-'canary > /tmp/f; grep -ahs -e '[p]ayload-canary' /tmp/f"
    trajectory = await place.runner.run(place.request(in_order([bash(look), bash("env"), bash(SUBMIT)])))
    control = await place.runner.run(place.request(in_order([bash(found), bash(SUBMIT)]), "control"))
    assert SECRET_ANSWER in observations(control)
    assert "looked" in observations(trajectory)
    seen = observations(trajectory)
    assert SECRET_ANSWER not in seen
    assert place.proxy.sessions[0].secret not in seen


async def test_logs_hold_no_secret(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await place.runner.run(place.request())
    assert "rollout r1" in caplog.text
    assert place.proxy.sessions[0].secret not in caplog.text


async def test_cancelling_ends_session_and_sandbox(place: Place) -> None:
    asked = asyncio.Event()

    async def hang(request: ChatRequest) -> Any:
        asked.set()
        await asyncio.sleep(60)

    running = asyncio.create_task(place.runner.run(place.request(hang)))
    await asyncio.wait_for(asked.wait(), 30)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(SandboxGoneError):
        await place.provider.made[0].exec("true")
    again = await place.runner.run(place.request(SOLVE))
    assert again.reward.verdict == "success", "the id must be free again"
