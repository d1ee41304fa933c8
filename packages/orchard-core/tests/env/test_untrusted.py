"""A sandbox that lies on the wire or in a tar can't hurt the host."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import tarfile
from pathlib import Path
from typing import Any

import pytest

from orchard_core.env import SandboxFileError, SandboxGoneError
from orchard_core.env.connection import ClientStream, Connection
from orchard_core.env.trees import unpack_tree
from orchard_core.sandboxd import wire


def _tar(*members: tuple[str, bytes, str]) -> io.BytesIO:
    spool = io.BytesIO()
    with tarfile.open(fileobj=spool, mode="w") as tar:
        for name, kind, link in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            member.linkname = link
            member.size = 1 if kind == tarfile.REGTYPE else 0
            tar.addfile(member, io.BytesIO(b"x") if member.size else None)
    spool.seek(0)
    return spool


@pytest.mark.parametrize(
    "members",
    [
        [("../evil", tarfile.REGTYPE, "")],
        [("a/../../evil", tarfile.REGTYPE, "")],
        [("/evil", tarfile.REGTYPE, "")],
        [("link", tarfile.SYMTYPE, ".."), ("link/evil", tarfile.REGTYPE, "")],
        [("link", tarfile.SYMTYPE, "sub"), ("link", tarfile.REGTYPE, "")],
        [("hard", tarfile.LNKTYPE, "/etc/passwd")],
        [("dev", tarfile.CHRTYPE, "")],
        [("a", tarfile.REGTYPE, ""), ("a", tarfile.REGTYPE, "")],
        [("a", tarfile.REGTYPE, ""), ("a/b", tarfile.REGTYPE, "")],
    ],
)
def test_an_evil_tar_writes_nothing_outside_and_leaves_nothing(
    tmp_path: Path, members: list[tuple[str, bytes, str]]
) -> None:
    with pytest.raises(SandboxFileError):
        unpack_tree(_tar(*members), tmp_path / "deep" / "target")
    assert sorted(os.listdir(tmp_path)) == ["deep"]
    assert os.listdir(tmp_path / "deep") == []


def test_garbage_instead_of_a_tar_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SandboxFileError):
        unpack_tree(io.BytesIO(b"garbage" * 1000), tmp_path / "target")


def _ignore(stream: ClientStream, request: dict[str, Any]) -> None:
    stream.abandon()


async def _receive_for_ever(stream: ClientStream) -> None:
    while True:
        await stream.receive()


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff" * 20,
        wire.frame(wire.DATA, 1, b""),
        wire.frame(wire.DATA, 1, b"\0" * (wire.INITIAL_CREDIT + 2)),
        wire.frame(wire.CREDIT, 1, wire.pack(-5)),
        wire.frame(wire.OPEN, 3, wire.pack({})),
        wire.frame(wire.OPEN, 2, wire.pack([])),
        wire.frame(wire.HELLO, 0, b"?"),
    ],
)
async def test_a_peer_that_breaks_the_protocol_loses_the_connection(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        _transport, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(_ignore), sock=ours
        )
        stream = connection.open({"op": "read"})
        theirs.setblocking(False)
        sending = asyncio.create_task(asyncio.get_running_loop().sock_sendall(theirs, sent))
        with pytest.raises(SandboxGoneError, match="protocol"):
            await asyncio.wait_for(_receive_for_ever(stream), 20)
        sending.cancel()
