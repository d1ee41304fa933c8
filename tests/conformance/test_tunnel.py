"""Tunnels carry TCP out of a sandbox that has no network, in every provider."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from orchard_core.env import Sandbox
from orchard_core.errors import UsageError

BIG = 10_000_000

CLIENT = """
import hashlib, sys, urllib.request
body = bytes(range(250)) * int(sys.argv[2])
with urllib.request.urlopen(urllib.request.Request(sys.argv[1], data=body or None), timeout=30) as answer:
    print(hashlib.sha256(body).hexdigest(), hashlib.sha256(answer.read()).hexdigest(), answer.headers["X-Sum"])
"""


@pytest.fixture
async def server() -> AsyncIterator[tuple[str, int]]:
    async def handle(request: web.Request) -> web.Response:
        body = await request.read()
        return web.Response(body=body[::-1], headers={"X-Sum": hashlib.sha256(body).hexdigest()})

    app = web.Application(client_max_size=BIG * 2)
    app.router.add_route("*", "/", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    host, port = site._server.sockets[0].getsockname()[:2]  # type: ignore[attr-defined]
    yield host, port
    await runner.cleanup()


async def test_http_with_large_bodies_both_ways(sandbox: Sandbox, server: tuple[str, int]) -> None:
    await sandbox.tunnel(8123, server)
    result = await sandbox.exec(
        ["python3", "-c", CLIENT, "http://127.0.0.1:8123/", str(BIG // 250)], timeout=60
    )
    assert result.ok, result.stderr
    body = bytes(range(250)) * (BIG // 250)
    sent, got, seen = result.text.split()
    assert sent == seen == hashlib.sha256(body).hexdigest()
    assert got == hashlib.sha256(body[::-1]).hexdigest()


async def test_parallel_connections(sandbox: Sandbox, server: tuple[str, int]) -> None:
    await sandbox.tunnel(8123, server)
    calls = [
        sandbox.exec(["python3", "-c", CLIENT, "http://127.0.0.1:8123/", str(1000 + n)], timeout=60)
        for n in range(8)
    ]
    for result in await asyncio.gather(*calls):
        assert result.ok, result.stderr
        sent, _got, seen = result.text.split()
        assert sent == seen


async def test_a_target_that_does_not_listen_closes_the_connection(sandbox: Sandbox) -> None:
    await sandbox.tunnel(8123, ("127.0.0.1", 1))
    script = "import socket; s = socket.create_connection(('127.0.0.1', 8123), 5); print(s.recv(1))"
    result = await sandbox.exec(["python3", "-c", script], timeout=30)
    assert result.text == "b''\n" or b"ConnectionReset" in result.stderr


async def test_half_close_is_carried(sandbox: Sandbox) -> None:
    async def upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        writer.close()

    async with await asyncio.start_server(upper, "127.0.0.1", 0) as listening:
        host, port = listening.sockets[0].getsockname()
        await sandbox.tunnel(8123, (host, port))
        script = (
            "import socket; s = socket.create_connection(('127.0.0.1', 8123), 5); s.sendall(b'abc'); "
            "s.shutdown(socket.SHUT_WR); print(s.makefile('rb').read())"
        )
        assert (await sandbox.exec(["python3", "-c", script], timeout=30)).text == "b'ABC'\n"


async def test_a_port_takes_one_tunnel(sandbox: Sandbox) -> None:
    await sandbox.tunnel(8123, ("127.0.0.1", 1))
    with pytest.raises(UsageError, match="8123"):
        await sandbox.tunnel(8123, ("127.0.0.1", 2))


async def test_a_port_that_is_in_use_inside_is_an_error(sandbox: Sandbox) -> None:
    script = "import socket; s = socket.create_server(('127.0.0.1', 8124)); print('up', flush=True); input()"
    up = asyncio.Event()

    async def on_output(*_: object) -> None:
        up.set()

    call = asyncio.create_task(
        sandbox.exec(
            ["python3", "-c", f"{script.replace('input()', 'import time; time.sleep(60)')}"],
            on_output=on_output,
        )
    )
    await asyncio.wait_for(up.wait(), 20)
    with pytest.raises(UsageError, match="8124"):
        await sandbox.tunnel(8124, ("127.0.0.1", 1))
    call.cancel()
