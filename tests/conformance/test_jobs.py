"""Jobs run on whoever listens, take input and signals, and may have a terminal."""

from __future__ import annotations

import asyncio
import signal

import pytest

from orchard_core.env import Sandbox, SandboxGoneError, UnknownExecError, Window
from orchard_core.errors import UsageError


async def test_a_job_runs_on_and_is_attached_to_later(sandbox: Sandbox) -> None:
    status = await sandbox.start("echo a; sleep 0.2; echo b >&2; exit 4", exec_id="job")
    assert (status.state, status.exit_code, status.ended_at) == ("running", None, None)
    result = await sandbox.attach("job")
    assert (result.stdout, result.stderr, result.exit_code) == (b"a\n", b"b\n", 4)
    status = await sandbox.job("job")
    assert (status.state, status.exit_code, status.stdout_bytes) == ("exited", 4, 2)
    assert status.ended_at is not None
    assert 0.2 <= status.ended_at - status.started_at < 20


async def test_a_job_that_is_submitted_again_is_not_started_again(sandbox: Sandbox) -> None:
    for _ in range(3):
        await sandbox.start("echo x >> /tmp/count; cat /tmp/count", exec_id="job")
    assert (await sandbox.attach("job")).text == "x\n"


async def test_a_late_listener_gets_all_output_once(sandbox: Sandbox) -> None:
    await sandbox.start("for i in 1 2 3; do echo $i; done; touch /tmp/on; sleep 0.2; echo 4", exec_id="job")
    await sandbox.exec("while ! [ -e /tmp/on ]; do sleep 0.01; done", timeout=20)
    heard = b""

    async def on_output(_stream: str, data: bytes) -> None:
        nonlocal heard
        heard += data

    result = await sandbox.attach("job", on_output=on_output)
    assert heard == result.stdout == b"1\n2\n3\n4\n"


async def test_a_late_listener_of_more_than_is_kept_gets_head_and_tail_and_is_told_what_is_missing(
    sandbox: Sandbox,
) -> None:
    await sandbox.start("seq 100000; touch /tmp/on; sleep 0.3; echo end", exec_id="job", max_output=1000)
    await sandbox.exec("while ! [ -e /tmp/on ]; do sleep 0.01; done", timeout=20)
    heard = b""

    async def on_output(_stream: str, data: bytes) -> None:
        nonlocal heard
        heard += data

    result = await sandbox.attach("job", on_output=on_output)
    assert heard.startswith(b"1\n2\n")
    assert heard.endswith(b"100000\nend\n")
    assert result.stdout == heard[:500] + heard[-500:]
    assert (await sandbox.job("job")).stdout_bytes == result.stdout_dropped + 1000 == 588_899


async def test_cancelling_kills_the_tree_and_keeps_the_output(sandbox: Sandbox) -> None:
    await sandbox.start("echo begun; setsid sleep 4713 & sleep 4713", exec_id="job")
    await sandbox.exec(
        "until pgrep -f 'sleep 471[3]' || grep -qs 4713 /proc/[0-9]*/cmdline; do :; done", timeout=20
    )
    await sandbox.cancel("job")
    result = await sandbox.attach("job")
    assert (result.cancelled, result.timed_out, result.exit_code) == (True, False, None)
    assert result.stdout == b"begun\n"
    assert (await sandbox.job("job")).state == "cancelled"
    assert (
        await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 471[3]'")
    ).text == "0\n"


async def test_a_job_takes_input_in_pieces_until_its_end(sandbox: Sandbox) -> None:
    await sandbox.start("cat", exec_id="job", stdin=True)
    await sandbox.send_input("job", b"one ")
    await sandbox.send_input("job", b"two", last=True)
    assert (await sandbox.attach("job")).stdout == b"one two"
    with pytest.raises(UsageError, match="takes no input"):
        await sandbox.send_input("job", b"three")


async def test_a_signal_reaches_the_job(sandbox: Sandbox) -> None:
    script = "trap 'echo caught; exit 7' USR1; touch /tmp/ready; while :; do sleep 0.02; done"
    await sandbox.start(script, exec_id="job")
    await sandbox.exec("while ! [ -e /tmp/ready ]; do sleep 0.01; done", timeout=20)
    await sandbox.signal("job", signal.SIGUSR1)
    result = await sandbox.attach("job")
    assert result.stdout.startswith(b"caught")
    assert result.exit_code == 7


async def test_an_unknown_job_is_named(sandbox: Sandbox) -> None:
    for call in (
        sandbox.job("none"),
        sandbox.attach("none"),
        sandbox.cancel("none"),
        sandbox.send_input("none", b""),
    ):
        with pytest.raises(UnknownExecError, match="none"):
            await call


async def test_all_jobs_are_listed(sandbox: Sandbox) -> None:
    await sandbox.start("true", exec_id="one")
    await sandbox.start(["sleep", "4714"], exec_id="two")
    await sandbox.attach("one")
    assert [(job.id, job.state) for job in await sandbox.jobs()] == [("one", "exited"), ("two", "running")]
    assert (await sandbox.jobs())[1].argv == ["sleep", "4714"]


async def test_a_long_list_of_jobs_comes_whole(sandbox: Sandbox) -> None:
    for number in range(12):
        await sandbox.start(["true", "x" * 100_000], exec_id=str(number))
    assert [job.id for job in await sandbox.jobs()] == [str(number) for number in range(12)]


async def test_another_user_is_become_or_refused(sandbox: Sandbox) -> None:
    if (await sandbox.exec("id -u")).text == "0\n":
        result = await sandbox.exec("id -u; id -g; id -G", user="1:2")
        assert result.text == "1\n2\n2\n"
    else:
        with pytest.raises(UsageError, match="can't become"):
            await sandbox.exec("true", user="1:2")


async def test_more_output_than_can_be_kept_is_refused_before_it_is_made(sandbox: Sandbox) -> None:
    with pytest.raises(UsageError, match="max_output"):
        await sandbox.exec("true", max_output=1 << 40)


async def test_several_commands_run_at_a_time(sandbox: Sandbox) -> None:
    async with asyncio.timeout(20):
        results = await asyncio.gather(*(sandbox.exec(f"sleep 0.3; echo {n}") for n in range(8)))
    assert [result.text for result in results] == [f"{n}\n" for n in range(8)]


async def test_a_terminal_is_one_and_takes_keys_and_a_new_size(sandbox: Sandbox) -> None:
    script = "test -t 0 && test -t 1 && stty size; read line; echo got $line; stty size; exit 5"
    await sandbox.start(script, exec_id="job", terminal=Window(30, 100))
    heard = b""
    shown = asyncio.Event()

    async def on_output(_stream: str, data: bytes) -> None:
        nonlocal heard
        heard += data
        if b"100" in heard:
            shown.set()

    attached = asyncio.create_task(sandbox.attach("job", on_output=on_output))
    await asyncio.wait_for(shown.wait(), 20)
    await sandbox.resize("job", Window(40, 120))
    await sandbox.send_input("job", b"keys\r")
    result = await attached
    assert result.exit_code == 5
    assert result.text.replace("\r", "") == "30 100\nkeys\ngot keys\n40 120\n"
    assert heard == result.stdout


async def test_a_job_without_a_terminal_has_no_size(sandbox: Sandbox) -> None:
    await sandbox.start("sleep 4715", exec_id="job")
    with pytest.raises(UsageError, match="no terminal"):
        await sandbox.resize("job", Window())


async def test_a_user_that_does_not_exist_is_named(sandbox: Sandbox) -> None:
    with pytest.raises(UsageError, match="nobody-of-that-name"):
        await sandbox.exec("true", user="nobody-of-that-name")


async def test_a_fork_bomb_leaves_the_sandbox_answering(sandbox: Sandbox) -> None:
    await sandbox.write_file("/tmp/kept", b"kept")
    bomb = await sandbox.exec("b() { b | b & }; b; sleep 1", timeout=3)
    assert bomb.exit_code is not None or bomb.timed_out
    assert await sandbox.read_file("/tmp/kept") == b"kept"


async def test_a_job_of_a_closed_sandbox_ends_with_it(sandbox: Sandbox) -> None:
    waiting = asyncio.create_task(sandbox.exec("sleep 4716"))
    await asyncio.sleep(0.1)
    await sandbox.close()
    with pytest.raises(SandboxGoneError):
        await waiting
