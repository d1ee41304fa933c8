"""A client reaches servers inside a sandbox, and a sandbox without network reaches nothing."""

from __future__ import annotations

import asyncio

import pytest

from orchard_core.env import Provider, Sandbox, SandboxPortError, SandboxSpec
from orchard_core.errors import UsageError

SERVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    peer, _ = server.accept()
    data = b""
    while piece := peer.recv(65536):
        data += piece
    peer.sendall(data[::-1])
    peer.close()
"""


async def test_bytes_go_to_a_port_and_come_back(sandbox: Sandbox) -> None:
    await sandbox.start(["python3", "-c", SERVER, "8123"], exec_id="server")
    await sandbox.exec(
        "until python3 -c \"import socket; socket.create_connection(('127.0.0.1', 8123))\"; do :; done 2>/dev/null",
        timeout=20,
    )
    sent = bytes(range(256)) * 8192
    stream = await sandbox.connect(8123)

    async def send() -> None:
        await stream.send(sent)
        stream.end()

    sending = asyncio.create_task(send())
    got = b""
    while data := await stream.receive():
        got += data
    await sending
    stream.close()
    assert got == sent[::-1]


async def test_a_port_on_which_nobody_listens_is_named(sandbox: Sandbox) -> None:
    stream = await sandbox.connect(8124)
    with pytest.raises(SandboxPortError, match="8124"):
        await stream.receive()
    with pytest.raises(UsageError, match="port number"):
        await sandbox.connect(70000)


async def test_a_sandbox_without_network_reaches_nothing_outside(provider: Provider) -> None:
    async with await provider.create(SandboxSpec(network="none")) as sandbox:
        assert await sandbox.probe("169.254.169.254", 80) in ("unreachable", "timeout")
        assert await sandbox.probe("10.255.255.1", 443, timeout_s=0.5) in ("unreachable", "timeout")
        assert await sandbox.probe("127.0.0.1", 8125) == "refused"
