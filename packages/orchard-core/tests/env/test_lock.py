"""The rules that close a pod's network namespace, in real namespaces joined by a cable."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import orchard_core

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="making network namespaces needs root")

SOURCE = Path(orchard_core.__file__).parent
INSIDE, OUTSIDE = "10.254.77.2", "10.254.77.1"
LOCK = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); sys.argv = ['lock', '7070']; from sandboxd.lock import main; main()"
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1).sendall(b'x'); print('open')"
SERVE = """
import socket, sys, threading
def serve(port):
    server = socket.create_server(("", port))
    while True:
        peer, _ = server.accept()
        peer.recv(1)
        peer.close()
for port in (7070, 8080):
    threading.Thread(target=serve, args=(port,), daemon=True).start()
print("up", flush=True)
sys.stdin.read()
"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Pair:
    """Two network namespaces with a cable between them, and servers on two ports in each."""

    def __init__(self, name: str) -> None:
        self.inside, self.outside = f"{name}i", f"{name}o"
        ip("netns", "add", self.inside)
        ip("netns", "add", self.outside)
        ip(
            "link",
            "add",
            f"{name}a",
            "netns",
            self.inside,
            "type",
            "veth",
            "peer",
            f"{name}b",
            "netns",
            self.outside,
        )
        self.servers = []
        for space, link, address in ((self.inside, f"{name}a", INSIDE), (self.outside, f"{name}b", OUTSIDE)):
            for command in (
                ["addr", "add", f"{address}/24", "dev", link],
                ["link", "set", link, "up"],
                ["link", "set", "lo", "up"],
            ):
                ip("-n", space, *command)
            server = subprocess.Popen(
                ["ip", "netns", "exec", space, sys.executable, "-c", SERVE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert server.stdout is not None
            assert server.stdout.readline() == b"up\n"
            self.servers.append(server)

    def python(self, space: str, code: str, *arguments: str) -> str:
        done = subprocess.run(
            ["ip", "netns", "exec", space, sys.executable, "-c", code, *arguments],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        return done.stdout.strip() or done.stderr.strip().splitlines()[-1]

    def close(self) -> None:
        for server in self.servers:
            server.kill()
            server.wait()
        ip("netns", "del", self.inside)
        ip("netns", "del", self.outside)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair(f"o{uuid.uuid4().hex[:6]}")
    yield made
    made.close()


def test_only_sandboxds_port_is_reached_and_nothing_is_reached_from_inside(pair: Pair) -> None:
    for port in ("7070", "8080"):
        assert pair.python(pair.inside, CONNECT, OUTSIDE, port) == "open"
        assert pair.python(pair.outside, CONNECT, INSIDE, port) == "open"
    subprocess.run(["ip", "netns", "exec", pair.inside, sys.executable, "-c", LOCK], check=True)
    assert "timed out" in pair.python(pair.inside, CONNECT, OUTSIDE, "7070")
    assert "timed out" in pair.python(pair.inside, CONNECT, OUTSIDE, "8080")
    assert pair.python(pair.outside, CONNECT, INSIDE, "7070") == "open"
    assert "timed out" in pair.python(pair.outside, CONNECT, INSIDE, "8080")
    assert pair.python(pair.inside, CONNECT, "127.0.0.1", "8080") == "open"


def test_without_the_privilege_it_says_why() -> None:
    done = subprocess.run(
        ["setpriv", "--bounding-set=-net_admin", "unshare", "--user", "--net", "setpriv", "--bounding-set=-net_admin",
         sys.executable, "-c", LOCK],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "can't be closed here" in done.stderr
