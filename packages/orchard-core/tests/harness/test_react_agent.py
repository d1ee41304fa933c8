"""The ReAct program as a process, against a real recording proxy."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from harness_kit import SUBMIT, bash, call, in_order, run_react, say

from orchard_core.engine.errors import EngineError
from orchard_core.engine.protocol import ChatRequest, SamplingParams
from orchard_core.harness import react_agent
from orchard_core.harness.protocol import HarnessLimits
from orchard_core.harness.react import ReactHarness, ReactTool
from orchard_core.harness.style import ChatStyle
from orchard_core.proxy import SessionPolicy


async def test_a_two_turn_task_is_done_and_submitted(tmp_path: Path) -> None:
    run = await run_react(tmp_path, [bash("echo hello > greeting; cat greeting"), bash(SUBMIT)])
    assert (run.code, run.result["exit_status"], run.result["turns"]) == (0, "submitted", 2)
    assert (tmp_path / "greeting").read_text() == "hello\n"
    assert run.tool_results == ["hello\n"]
    assert [message["role"] for message in run.messages] == ["system", "user", "assistant", "tool"]


async def test_the_mark_ends_the_episode_only_as_first_line_and_with_success(tmp_path: Path) -> None:
    run = await run_react(
        tmp_path, [bash(f"echo first; {SUBMIT}"), bash(f"{SUBMIT}; exit 1"), bash(f"{SUBMIT}; echo more")]
    )
    assert run.result["turns"] == 3
    assert run.tool_results[1].endswith("(exit 1)")


@pytest.mark.parametrize(
    ("command", "seen"),
    [
        ("echo out; echo err >&2", "out\nerr\n"),
        ("exit 3", "(exit 3)"),
        ("kill -9 $$", "(exit -9)"),
        ("printf 'a\\r\\nb\\377'", "a\nb\N{REPLACEMENT CHARACTER}"),
        ("cat", ""),
    ],
)
async def test_observation_is_the_output_and_a_bad_exit(tmp_path: Path, command: str, seen: str) -> None:
    run = await run_react(tmp_path, [bash(command), bash(SUBMIT)])
    assert run.tool_results == [seen]


async def test_long_output_keeps_head_and_tail(tmp_path: Path) -> None:
    harness = ReactHarness(ChatStyle(output_head=4, output_tail=3))
    run = await run_react(tmp_path, [bash("printf 0123456789"), bash(SUBMIT)], harness)
    assert run.tool_results == ["0123\n[3 characters cut]\n789"]


async def test_output_beyond_memory_bounds_is_counted_in_full(tmp_path: Path) -> None:
    harness = ReactHarness(ChatStyle(output_head=2, output_tail=2))
    run = await run_react(tmp_path, [bash("head -c 9000000 /dev/zero | tr '\\0' x"), bash(SUBMIT)], harness)
    assert run.tool_results == ["xx\n[8999996 characters cut]\nxx"]


async def test_a_command_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    limits = HarnessLimits(command_timeout_s=0.5)
    run = await run_react(
        tmp_path, [bash("echo begun; sleep 50 & wait; touch late"), bash(SUBMIT)], None, limits
    )
    assert run.tool_results == ["begun\n(timed out after 0.5 s)"]
    assert not (tmp_path / "late").exists()


async def test_a_background_child_does_not_hold_the_turn(tmp_path: Path) -> None:
    run = await run_react(tmp_path, [bash("sleep 5 & echo started"), bash(SUBMIT)])
    assert run.tool_results == ["started\n"]


async def test_commands_never_see_the_secret(tmp_path: Path) -> None:
    run = await run_react(tmp_path, [bash("env"), bash(SUBMIT)])
    assert "PAGER=cat" in run.tool_results[0]
    assert "ORCHARD" not in run.tool_results[0]


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (call("bsh", {"command": "ls"}), "Unknown tool 'bsh'."),
        (call("bash", "{"), "Error parsing tool call arguments"),
        (call("bash", "[]"), "must be a JSON object"),
        (call("bash", {"cmd": "ls"}), "Missing 'command' argument"),
        (call("bash", {"command": ["ls"]}), "must be a string"),
    ],
)
async def test_a_malformed_call_is_answered_with_what_is_wrong(
    tmp_path: Path, bad: dict[str, Any], complaint: str
) -> None:
    run = await run_react(tmp_path, [{"content": "", "tool_calls": [bad]}, bash(SUBMIT)])
    assert run.code == 0
    assert complaint in run.tool_results[0]


async def test_three_malformed_replies_in_a_row_end_it(tmp_path: Path) -> None:
    bad = {"content": "", "tool_calls": [call("no_tool", {})]}
    run = await run_react(tmp_path, [bad, say("hm"), bash("true"), say("a"), bad, say("c"), bash(SUBMIT)])
    assert (run.code, run.result["exit_status"], run.result["turns"]) == (12, "format_error", 6)
    reminders = [message for message in run.messages[2:] if message["role"] == "user"]
    assert len(reminders) == 2
    assert "MUST include at least one tool call" in reminders[0]["content"]


async def test_several_calls_in_one_reply_are_all_answered(tmp_path: Path) -> None:
    both = [call("bash", {"command": "echo 1"}, "a"), call("bash", {"command": "echo 2"}, "b")]
    run = await run_react(tmp_path, [{"content": "", "tool_calls": both}, bash(SUBMIT)])
    assert run.tool_results == ["1\n", "2\n"]
    assert [message["tool_call_id"] for message in run.messages if message["role"] == "tool"] == ["a", "b"]


async def test_a_text_reply_ends_it_when_so_configured(tmp_path: Path) -> None:
    run = await run_react(tmp_path, [bash("true"), say("forty-two")], ReactHarness(finish="text"))
    assert (run.code, run.result) == (0, {"exit_status": "final", "turns": 2, "detail": "forty-two"})


async def test_a_custom_tool_gets_its_arguments_as_json(tmp_path: Path) -> None:
    program = "import json,sys; print(json.load(sys.stdin)['text'].upper())"
    tool = ReactTool(
        "shout",
        "Say it loud",
        {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        (sys.executable, "-c", program),
    )
    replies = [{"content": "", "tool_calls": [call("shout", {"text": "ä" * 70_000})]}, say("done")]
    style = ChatStyle(output_head=100_000)
    run = await run_react(tmp_path, replies, ReactHarness(style, (tool,), bash=False, finish="text"))
    assert run.tool_results == ["Ä" * 70_000 + "\n"]
    assert [tool["function"]["name"] for tool in run.sealed.calls[0].request["tools"]] == ["shout"]


async def test_turns_are_capped(tmp_path: Path) -> None:
    run = await run_react(tmp_path, [bash("true")], None, HarnessLimits(max_turns=3))
    assert (run.code, run.result["detail"], len(run.sealed.calls)) == (10, "step_limit", 3)


async def test_wall_clock_is_capped(tmp_path: Path) -> None:
    run = await run_react(tmp_path, [bash("sleep 0.6")], None, HarnessLimits(timeout_s=0.5))
    assert (run.code, run.result["exit_status"], run.result["turns"]) == (11, "time", 1)


async def test_a_used_up_budget_is_a_limit(tmp_path: Path) -> None:
    run = await run_react(tmp_path, [bash("true")], policy=SessionPolicy(max_calls=2))
    assert (run.code, run.result["detail"], run.sealed.ended_by) == (10, "budget_exceeded", "max_calls")


async def test_a_failing_engine_is_asked_again_then_given_up(tmp_path: Path) -> None:
    asked: list[int] = []

    def fail(request: ChatRequest) -> Any:
        asked.append(1)
        raise EngineError("out of memory")

    run = await run_react(tmp_path, fail)
    assert (run.code, run.result["exit_status"], len(asked)) == (13, "model_error", react_agent.ATTEMPTS)
    assert "out of memory" in run.result["detail"]
    assert run.sealed.incomplete


async def test_an_engine_that_recovers_leaves_a_whole_record(tmp_path: Path) -> None:
    failures = iter([True])
    answer = in_order([bash("true"), bash(SUBMIT)])

    def flaky(request: ChatRequest) -> Any:
        if next(failures, False):
            raise EngineError("restarting")
        return answer(request)

    run = await run_react(tmp_path, flaky)
    assert (run.code, len(run.sealed.calls), run.sealed.incomplete) == (0, 2, None)


async def test_a_lost_connection_is_resumed_without_sampling_twice(tmp_path: Path) -> None:
    """The reply is cut once on its way; the re-sent call gets what was sampled before."""
    sampled: list[int] = []

    def count(request: ChatRequest) -> Any:
        sampled.append(1)
        return in_order([bash("echo one"), bash(SUBMIT)])(request)

    async with CuttingRelay() as relay:
        run = await run_react(tmp_path, count, RelayedReact(relay))
    assert relay.cuts == 1
    assert (run.code, len(sampled), len(run.sealed.calls)) == (0, 2, 2)


class CuttingRelay:
    """Forwards TCP connections, and cuts the first one after the first bytes of its reply."""

    def __init__(self) -> None:
        self.target = ("", 0)
        self.cuts = 0

    async def __aenter__(self) -> CuttingRelay:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self.target)
        upward = asyncio.create_task(_pump(reader, up_writer))
        if not self.cuts:
            self.cuts += 1
            writer.write((await up_reader.read(1000))[:40])
            # The proxy must believe that all was sent, which it learns only once its reply is written.
            await asyncio.sleep(0.05)
        else:
            await _pump(up_reader, writer)
        writer.close()
        up_writer.close()
        upward.cancel()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()


class RelayedReact(ReactHarness):
    """React whose model endpoint is reached through a relay."""

    def __init__(self, relay: CuttingRelay) -> None:
        super().__init__()
        object.__setattr__(self, "relay", relay)

    def launch(self, task: Any, endpoint: Any, limits: HarnessLimits) -> Any:
        relay: CuttingRelay = self.relay  # type: ignore[attr-defined]
        authority, _, path = endpoint.base_url.removeprefix("http://").partition("/")
        host, _, port = authority.partition(":")
        relay.target = (host, int(port))
        moved = type(endpoint)(f"http://127.0.0.1:{relay.port}/{path}", endpoint.api_key, endpoint.model)
        return super().launch(task, moved, limits)


async def test_an_endpoint_that_is_not_there_is_a_model_error(tmp_path: Path) -> None:
    async with CuttingRelay() as relay:
        pass  # Its port is free again, so nothing listens there.
    run = await run_react(tmp_path, [bash("true")], RelayedReact(relay))
    assert (run.code, run.result["exit_status"]) == (13, "model_error")
    assert "lost" in run.result["detail"]


async def test_the_harness_may_lower_the_reply_length(tmp_path: Path) -> None:
    policy = SessionPolicy(sampling=SamplingParams(max_tokens=100))
    run = await run_react(tmp_path, [bash(SUBMIT)], None, HarnessLimits(max_tokens=7), policy)
    assert run.sealed.calls[0].request["max_tokens"] == 7
