"""A listening sandboxd, run from its own runtime folder: who gets in, and what outlives a connection."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchard_core.env.client import SandboxClient
from orchard_core.env.dial import UnixAddress, dial
from orchard_core.env.errors import SandboxGoneError, SandboxIdentityError, SandboxUnreachableError
from orchard_core.env.link import Target, dialled_link
from orchard_core.env.proving import Credentials
from orchard_core.env.runtime import build_runtime, runtime_argv
from orchard_core.sandboxd import auth, wire


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_runtime(tmp_path_factory.mktemp("runtime") / "root")


@dataclass
class Daemon:
    process: subprocess.Popen[bytes]
    address: UnixAddress
    credentials: Credentials
    log: Path

    async def locate(self) -> Target:
        if self.process.poll() is not None:
            raise SandboxGoneError("sandboxd ended")
        return Target(self.address, self.credentials)

    async def client(self) -> SandboxClient:
        return SandboxClient(dialled_link(self.locate, patience_s=10))


def start(runtime: Path, folder: Path, **settings: str) -> Daemon:
    folder.mkdir(exist_ok=True)
    key = secrets.token_bytes(auth.KEY_BYTES)
    log = folder / "log"
    environ = {
        "ORCHARD_SANDBOX_ID": "one",
        "ORCHARD_SANDBOX_IDENTITY": "uid-1",
        "ORCHARD_SANDBOX_KEY": key.hex(),
        "ORCHARD_LISTEN": f"unix:{folder}/socket",
        "ORCHARD_TTL_S": "60",
        "ORCHARD_ENV": wire.pack({"FROM_SPEC": "1"}).hex(),
        "FROM_IMAGE": "1",
        **settings,
    }
    with open(log, "wb") as file:
        process = subprocess.Popen(runtime_argv(str(runtime)), env=environ, cwd=folder, stderr=file)
    return Daemon(process, UnixAddress(f"{folder}/socket"), Credentials(key, "uid-1"), log)


@pytest.fixture
async def daemon(runtime: Path, tmp_path: Path) -> AsyncIterator[Daemon]:
    made = start(runtime, tmp_path)
    yield made
    made.process.kill()
    made.process.wait()


async def ready(daemon: Daemon) -> SandboxClient:
    client = await daemon.client()
    await client.exec("true")
    return client


async def logged(daemon: Daemon, text: str) -> None:
    def wait() -> None:
        deadline = time.monotonic() + 20
        while text not in daemon.log.read_text():
            assert time.monotonic() < deadline, daemon.log.read_text()
            time.sleep(0.01)

    await asyncio.to_thread(wait)


async def test_the_images_folder_and_environment_hold_and_the_settings_stay_secret(
    daemon: Daemon, tmp_path: Path
) -> None:
    client = await ready(daemon)
    shown = await client.exec("pwd; echo $FROM_IMAGE $FROM_SPEC; env")
    assert shown.text.startswith(f"{tmp_path}\n1 1\n")
    assert "ORCHARD" not in shown.text
    assert daemon.credentials.key.hex() not in shown.text


async def test_a_wrong_key_is_refused_by_either_side(daemon: Daemon) -> None:
    await ready(daemon)
    with pytest.raises(SandboxIdentityError, match="does not know the sandbox's key"):
        await dial(daemon.address, Credentials(b"x" * 32, "uid-1"), lambda *_: None)
    await logged(daemon, "it left before it proved itself")


async def test_another_identity_is_refused_before_anything_is_proven_to_it(daemon: Daemon) -> None:
    await ready(daemon)
    with pytest.raises(SandboxIdentityError, match="another sandbox answers"):
        await dial(daemon.address, Credentials(daemon.credentials.key, "uid-2"), lambda *_: None)


async def test_a_replayed_proof_is_refused_and_the_log_says_so(daemon: Daemon) -> None:
    await ready(daemon)
    sent: list[bytes] = []
    nonce = secrets.token_bytes(32)

    async def exchange(proof: bytes | None) -> bytes:
        reader, writer = await asyncio.open_unix_connection(daemon.address.path)
        writer.write(wire.frame(wire.AUTH, 0, wire.pack({"version": wire.VERSION, "nonce": nonce})))
        head = await reader.readexactly(wire.HEADER.size)
        answer = wire.unpack(await reader.readexactly(wire.HEADER.unpack(head)[2]))
        if proof is None:
            proof = auth.proof(daemon.credentials.key, auth.CLIENT, nonce, answer["nonce"], "uid-1")
        sent.append(proof)
        writer.write(wire.frame(wire.AUTH, 0, wire.pack({"proof": proof})))
        said = await reader.read(64)
        writer.close()
        return said

    assert await exchange(None) != b""  # HELLO
    assert await exchange(sent[0]) == b""
    await logged(daemon, "it does not know the key")


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        wire.frame(wire.OPEN, 1, wire.pack({"op": "exec"})),
        wire.frame(wire.AUTH, 0, wire.pack([1])),
        wire.frame(wire.AUTH, 0, wire.pack({"version": wire.VERSION, "nonce": b"short"})),
        wire.HEADER.pack(wire.AUTH, 0, 1 << 20),
        wire.frame(wire.AUTH, 0, b"\xff"),
    ],
)
async def test_a_stranger_that_speaks_anything_else_is_cut_off(daemon: Daemon, said: bytes) -> None:
    client = await ready(daemon)
    reader, writer = await asyncio.open_unix_connection(daemon.address.path)
    writer.write(said)
    assert await reader.read() == b""
    writer.close()
    assert (await client.exec("echo still here")).text == "still here\n"


async def test_many_silent_strangers_do_not_keep_a_client_out(daemon: Daemon) -> None:
    await ready(daemon)
    silent = [await asyncio.open_unix_connection(daemon.address.path) for _ in range(100)]
    other = await daemon.client()
    assert (await other.exec("echo in")).text == "in\n"
    for _reader, writer in silent:
        writer.close()


async def test_two_clients_share_one_sandbox(daemon: Daemon) -> None:
    one, two = await ready(daemon), await ready(daemon)
    await one.write_file("shared", b"seen")
    assert await two.read_file("shared") == b"seen"


async def test_a_lost_connection_in_the_midst_of_a_command_runs_it_once_and_loses_no_output(
    daemon: Daemon,
) -> None:
    client = await ready(daemon)
    seen = b""

    async def on_output(_stream: str, data: bytes) -> None:
        nonlocal seen
        seen += data

    call = asyncio.create_task(
        client.exec(
            "echo x >> count; for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.05; done; cat count",
            on_output=on_output,
        )
    )
    for _ in range(3):
        await asyncio.sleep(0.1)
        (await client._link.connection()).shut("cut by the test")
    result = await call
    assert result.text == "1\n2\n3\n4\n5\n6\n7\n8\nx\n"
    assert seen == result.stdout


async def test_a_result_that_was_not_received_is_asked_for_again(daemon: Daemon) -> None:
    client = await ready(daemon)
    call = asyncio.create_task(client.exec("echo x >> count; cat count; sleep 0.2"))
    await asyncio.sleep(0.05)
    connection = await client._link.connection()
    assert connection._transport is not None
    connection._transport.pause_reading()
    await asyncio.sleep(0.4)  # the result is on its way now
    connection.shut("cut by the test")
    assert (await call).text == "x\n"


async def test_a_cancelled_call_kills_its_command_and_a_lost_client_does_not(
    daemon: Daemon, tmp_path: Path
) -> None:
    client, other = await ready(daemon), await ready(daemon)
    call = asyncio.create_task(client.exec("echo $$ > one; sleep 100"))
    await other.exec("while ! [ -s one ]; do sleep 0.01; done", timeout=20)
    call.cancel()
    assert (await other.exec("while [ -e /proc/$(cat one) ]; do sleep 0.01; done", timeout=20)).ok
    lost = asyncio.create_task(client.exec("echo $$ > two; sleep 100", exec_id="kept"))
    await other.exec("while ! [ -s two ]; do sleep 0.01; done", timeout=20)
    await client._link.close()
    with pytest.raises(SandboxGoneError):
        await lost
    os.kill(int((tmp_path / "two").read_text()), 0)  # raises if it is gone


async def test_input_that_was_cut_off_is_said_and_not_taken_for_whole(daemon: Daemon) -> None:
    client = await ready(daemon)
    call = asyncio.create_task(client.exec("sleep 0.3; wc -c > total; sleep 5", stdin=b"x" * (8 << 20)))
    await asyncio.sleep(0.1)
    (await client._link.connection()).shut("cut by the test")
    with pytest.raises(Exception, match="before all of the command's input had come"):
        await call


async def test_a_tunnel_is_there_again_after_the_connection_was_lost(daemon: Daemon) -> None:
    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    target = server.sockets[0].getsockname()[:2]
    client = await ready(daemon)
    port = 20000 + secrets.randbelow(20000)
    await client.tunnel(port, target)
    for _ in range(2):
        got = await client.exec(["bash", "-c", f"cat < /dev/tcp/127.0.0.1/{port}"])
        assert got.text == "hello\n"
        (await client._link.connection()).shut("cut by the test")
    server.close()


async def test_nobody_at_the_address_is_unreachable(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnreachableError, match="can't be reached"):
        await dial(UnixAddress(f"{tmp_path}/none"), Credentials(b"k" * 32, "x"), lambda *_: None)


async def test_the_time_limit_ends_it_with_its_reason(runtime: Path, tmp_path: Path) -> None:
    daemon = start(runtime, tmp_path, ORCHARD_TTL_S="0.5")
    client = await daemon.client()
    with pytest.raises(SandboxGoneError, match="time limit"):
        await client.exec("sleep 100")
    assert daemon.process.wait(10) == 0


def test_a_client_runs_on_uvloop_too(runtime: Path, tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")
    daemon = start(runtime, tmp_path)

    async def use() -> str:
        client = await ready(daemon)
        try:
            return (await client.exec("head -c 3000000 /dev/zero | wc -c")).text
        finally:
            await client._link.close()

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            assert runner.run(use()) == "3000000\n"
    finally:
        daemon.process.kill()
        daemon.process.wait()
