"""Whom a command runs as, by the image's own /etc/passwd; read by hand, since the image's resolver may need its C library."""

from __future__ import annotations

import os


class UserError(Exception):
    """There is no such user, or this sandbox can't become it."""


class User:
    """Ids, supplementary groups and the variables that follow from them."""

    __slots__ = ("env", "gid", "groups", "uid")

    def __init__(self, uid: int, gid: int, groups: list[int], env: dict[str, str]) -> None:
        self.uid = uid
        self.gid = gid
        self.groups = groups
        self.env = env


def find_user(name: str | None, root: str = "/") -> User | None:
    """The user called `name`, or "UID" or "UID:GID"; None for the sandbox's own. Raises UserError."""
    if name is None:
        return None
    first, _, second = name.partition(":")
    entry = next(
        (
            line
            for line in _lines(root + "etc/passwd")
            if first == line[0] or (first.isdigit() and first == line[2])
        ),
        None,
    )
    if entry is not None:
        uid, gid, login, home = int(entry[2]), int(entry[3]), entry[0], entry[5]
    elif first.isdigit():
        uid, gid, login, home = int(first), int(first), first, "/"
    else:
        raise UserError(f"the sandbox has no user {first!r}")
    if second:
        if not second.isdigit():
            raise UserError(f"a user is NAME, UID or UID:GID, not {name!r}")
        gid = int(second)
    if uid == os.getuid() and gid == os.getgid():
        return None
    if os.getuid() != 0:
        raise UserError(f"this sandbox runs as user {os.getuid()} and can't become {name!r}")
    groups = [int(line[2]) for line in _lines(root + "etc/group") if login in line[3].split(",")]
    return User(uid, gid, groups, {"HOME": home, "USER": login, "LOGNAME": login})


def _lines(path: str) -> list[list[str]]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            found = [line.rstrip("\n").split(":") for line in file]
    except OSError:
        return []
    return [
        line for line in found if len(line) >= (7 if path.endswith("passwd") else 4) and line[2].isdigit()
    ]
