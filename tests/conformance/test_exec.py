"""Commands behave the same in every provider's sandboxes."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from orchard_core.env import (
    ExecConflictError,
    Provider,
    Sandbox,
    SandboxFileError,
    SandboxGoneError,
    SandboxSpec,
)


async def test_exit_code_and_both_streams_come_back(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    assert not result.ok


async def test_a_signal_is_a_negative_exit_code(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("kill -TERM $$")).exit_code == -15


async def test_argv_is_not_read_by_a_shell(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["printf", "%s", "$HOME; echo `id` *"])
    assert result.stdout == b"$HOME; echo `id` *"


@pytest.mark.parametrize(("program", "code"), [("no-such-program", 127), ("/etc/passwd", 126)])
async def test_a_program_that_cannot_start_ends_as_in_a_shell(
    sandbox: Sandbox, program: str, code: int
) -> None:
    result = await sandbox.exec([program])
    assert result.exit_code == code
    assert program.encode() in result.stderr


async def test_env_and_cwd_reach_the_command(provider: Provider) -> None:
    async with await provider.create(SandboxSpec(env={"A": "spec", "B": "spec"})) as sandbox:
        result = await sandbox.exec('echo "$A $B $HOME $(pwd)"', env={"B": "caf\u00e9"}, cwd="/tmp")
        assert result.text == "spec caf\u00e9 /home/agent /tmp\n"
        assert (await sandbox.exec("pwd")).text == "/workspace\n"


async def test_the_hosts_environment_does_not_leak(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHARD_TEST_SECRET", "hunter2")
    async with await provider.create(SandboxSpec()) as sandbox:
        assert "hunter2" not in (await sandbox.exec("env; cat /proc/*/environ | tr '\\0' '\\n'")).text


async def test_a_missing_cwd_is_an_error_that_names_it(sandbox: Sandbox) -> None:
    with pytest.raises(SandboxFileError, match="/nowhere"):
        await sandbox.exec("true", cwd="/nowhere")


async def test_stdin_arrives_and_is_closed(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 8192
    result = await sandbox.exec(["cat"], stdin=data, max_output=4 << 20)
    assert result.stdout == data


async def test_stdin_that_nobody_reads_is_no_failure(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("exit 0", stdin=b"x" * (3 << 20))).exit_code == 0


async def test_without_stdin_a_reader_sees_the_end(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("cat", timeout=20)).exit_code == 0


async def test_output_over_the_bound_keeps_head_and_tail_and_counts_the_rest(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo HEAD; yes | head -c 5000000; echo TAIL", max_output=1000)
    assert len(result.stdout) == 1000
    assert result.stdout_dropped == 5_000_010 - 1000
    assert result.stdout.startswith(b"HEAD\n")
    assert result.stdout.endswith(b"TAIL\n")


async def test_a_timeout_kills_the_whole_tree_and_keeps_the_output(sandbox: Sandbox) -> None:
    script = (
        "echo before; sleep 4711 & setsid sleep 4711 & (setsid sh -c 'setsid sleep 4711 & exec sleep 0.1' &); "
        "env -i setsid setsid sleep 4711 & wait; sleep 4711"
    )
    result = await sandbox.exec(script, timeout=0.5)
    assert result.timed_out
    assert result.exit_code is None
    assert result.stdout == b"before\n"
    left = await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 471[1]'")
    assert left.text == "0\n"


async def test_a_timeout_spares_other_commands(sandbox: Sandbox) -> None:
    other = asyncio.create_task(sandbox.exec("(setsid sleep 0.8; echo done) & wait"))
    await sandbox.exec("sleep 100", timeout=0.2)
    assert (await other).text == "done\n"


async def test_a_background_process_outlives_its_command(sandbox: Sandbox) -> None:
    await sandbox.exec("(sleep 0.3; echo late > /tmp/late) & echo started")
    result = await sandbox.exec("while ! [ -e /tmp/late ]; do sleep 0.05; done; cat /tmp/late", timeout=20)
    assert result.text == "late\n"


async def test_the_same_id_runs_once_and_answers_again(sandbox: Sandbox) -> None:
    first = await sandbox.exec("echo x >> /tmp/count; cat /tmp/count", exec_id="one")
    again = await sandbox.exec("echo x >> /tmp/count; cat /tmp/count", exec_id="one")
    assert first.stdout == again.stdout == b"x\n"


async def test_the_same_id_runs_once_when_asked_concurrently(sandbox: Sandbox) -> None:
    calls = [sandbox.exec("echo x >> /tmp/count; sleep 0.2; cat /tmp/count", exec_id="one") for _ in range(8)]
    results = await asyncio.gather(*calls)
    assert {result.stdout for result in results} == {b"x\n"}


async def test_the_same_id_for_a_different_command_is_a_conflict(sandbox: Sandbox) -> None:
    await sandbox.exec("true", exec_id="one")
    with pytest.raises(ExecConflictError, match="one"):
        await sandbox.exec("false", exec_id="one")


async def test_a_cancelled_call_with_an_id_can_be_taken_up_again(sandbox: Sandbox) -> None:
    call = asyncio.create_task(sandbox.exec("echo x >> /tmp/count; sleep 0.4; cat /tmp/count", exec_id="one"))
    await asyncio.sleep(0.1)
    call.cancel()
    again = await sandbox.exec("echo x >> /tmp/count; sleep 0.4; cat /tmp/count", exec_id="one")
    assert again.text == "x\n"


async def test_a_cancelled_call_without_an_id_kills_its_command(sandbox: Sandbox) -> None:
    call = asyncio.create_task(sandbox.exec("echo $$ > /tmp/pid; sleep 4712"))
    await sandbox.exec("while ! [ -s /tmp/pid ]; do sleep 0.02; done", timeout=20)
    call.cancel()
    gone = await sandbox.exec("while [ -e /proc/$(cat /tmp/pid) ]; do sleep 0.02; done", timeout=20)
    assert gone.exit_code == 0


async def test_output_is_streamed_while_the_command_runs(sandbox: Sandbox) -> None:
    seen: list[tuple[str, bytes]] = []
    first = asyncio.Event()

    async def on_output(stream: Literal["stdout", "stderr"], data: bytes) -> None:
        seen.append((stream, data))
        first.set()

    call = asyncio.create_task(
        sandbox.exec(
            "echo one; while ! [ -e /tmp/go ]; do sleep 0.02; done; echo two >&2", on_output=on_output
        )
    )
    await asyncio.wait_for(first.wait(), 20)
    await sandbox.write_file("/tmp/go", b"")
    result = await call
    assert seen == [("stdout", b"one\n"), ("stderr", b"two\n")]
    assert result.stdout == b"one\n"


async def test_a_slow_listener_gets_every_byte(sandbox: Sandbox) -> None:
    total = 0

    async def on_output(_stream: Literal["stdout", "stderr"], data: bytes) -> None:
        nonlocal total
        total += len(data)
        await asyncio.sleep(0.001)

    await sandbox.exec("yes | head -c 3000000", on_output=on_output)
    assert total == 3_000_000


async def test_sixteen_commands_run_at_the_same_time(sandbox: Sandbox) -> None:
    # Each waits for all the others, so they end only if they truly run together.
    script = "touch /tmp/in.$N; while [ $(ls /tmp/in.* | wc -l) -lt 16 ]; do sleep 0.05; done; echo $N"
    calls = [sandbox.exec(script, env={"N": str(n)}, timeout=60) for n in range(16)]
    assert [result.text for result in await asyncio.gather(*calls)] == [f"{n}\n" for n in range(16)]


async def test_killing_everything_inside_ends_neither_the_command_nor_the_sandbox(sandbox: Sandbox) -> None:
    for _ in range(40):  # there are several ways for the ends to cross
        assert (await sandbox.exec("kill -9 -1; echo alive", timeout=20)).text == "alive\n"
    assert (await sandbox.exec("echo again")).text == "again\n"


async def test_no_zombies_stay(sandbox: Sandbox) -> None:
    for _ in range(5):
        await sandbox.exec("(setsid true &) ; (true &)")
    assert (await sandbox.exec("grep -l '^State:.Z' /proc/[0-9]*/status")).stdout == b""


async def test_pending_and_later_calls_fail_typed_when_the_sandbox_is_closed(provider: Provider) -> None:
    sandbox = await provider.create(SandboxSpec())
    call = asyncio.create_task(sandbox.exec("sleep 100"))
    await asyncio.sleep(0.1)
    await sandbox.close()
    await sandbox.close()
    with pytest.raises(SandboxGoneError):
        await call
    with pytest.raises(SandboxGoneError):
        await sandbox.read_file("/etc/passwd")


async def test_time_to_live_ends_the_sandbox_with_the_reason(provider: Provider) -> None:
    async with await provider.create(SandboxSpec(ttl_s=0.5)) as sandbox:
        with pytest.raises(SandboxGoneError, match="ttl_s"):
            await sandbox.exec("sleep 100")


async def test_closing_the_provider_ends_its_sandboxes(provider: Provider) -> None:
    sandboxes = [await provider.create(SandboxSpec()) for _ in range(3)]
    await provider.close()
    for sandbox in sandboxes:
        with pytest.raises(SandboxGoneError):
            await sandbox.exec("true")
