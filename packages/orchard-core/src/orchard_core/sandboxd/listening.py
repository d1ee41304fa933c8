"""sandboxd on a TCP port or a unix socket: settings from the environment, and clients that must prove themselves.

Nothing that a stranger sends is kept beyond some kilobytes and some seconds, and a refusal is written to
stderr, which is the container's log.
"""

from __future__ import annotations

import _socket as socket
import os
import sys
import time

from . import auth, process, wire
from .loop import READ, Loop
from .main import limit
from .server import Server
from .termination import on_terminate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .loop import Timer

SOCKETS = {"unix": socket.AF_UNIX, "tcp": socket.AF_INET, "tcp6": socket.AF_INET6}
_PREFIX = "ORCHARD_"
_AUTH_PATIENCE_S = 10.0
_MAX_STRANGERS = 64
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main() -> None:
    """Listen as ORCHARD_LISTEN says and serve until the sandbox's time is up."""
    settings = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(_PREFIX)}
    config = configure(settings, given_environment(), os.getcwd())
    process.close_all_but(-1)
    process.load_prctl()
    process.guard_process()  # from here on /proc/self is not ours to read either
    limit(config)
    os.umask(0o022)
    try:
        os.makedirs(config["workdir"], exist_ok=True)
    except OSError as error:
        raise SystemExit(
            f"sandboxd: the working directory {config['workdir']} can't be made: {error.strerror}"
        ) from error
    os.chdir("/")
    loop = Loop()
    server = Server(loop, config)
    door = Door(loop, server, bytes.fromhex(settings["ORCHARD_SANDBOX_KEY"]), identity(settings))
    if settings.get("ORCHARD_ORPHAN_S"):
        door.end_when_orphaned(float(settings["ORCHARD_ORPHAN_S"]))
    on_terminate(
        loop, lambda: server.end("it was stopped from outside, as when its pod or container is deleted")
    )
    door.open(settings["ORCHARD_LISTEN"])
    log(f"listening on {settings['ORCHARD_LISTEN']}")
    loop.run()
    log("ended")


def identity(settings: dict[str, str]) -> str:
    """What this sandbox proves to be: the pod's uid where there is one, else its id."""
    return settings.get("ORCHARD_SANDBOX_IDENTITY") or settings["ORCHARD_SANDBOX_ID"]


def given_environment() -> dict[str, str]:
    """The image's environment: less what tells of sandboxd, of the API server's address, and of this interpreter."""
    env = {name: value for name, value in os.environ.items() if not name.startswith((_PREFIX, "KUBERNETES_"))}
    if _is_added_by_interpreter("LC_CTYPE"):
        del env["LC_CTYPE"]
    return env


def _is_added_by_interpreter(name: str) -> bool:
    """Python sets LC_CTYPE in its own environment where the locale is "C" (PEP 538)."""
    try:
        with open("/proc/self/environ", "rb") as file:
            began_with = b"\0" + file.read()
    except OSError:
        return False
    return name in os.environ and b"\0" + name.encode() + b"=" not in began_with


def configure(settings: dict[str, str], environ: Mapping[str, str], cwd: str) -> dict[str, Any]:
    """The server's config; `environ` is the image's environment and `cwd` its WORKDIR, which hold unless set."""
    env = dict(environ)
    env.setdefault("PATH", _DEFAULT_PATH)
    env.setdefault("HOME", "/")
    if settings.get("ORCHARD_ENV"):
        env.update(wire.unpack(bytes.fromhex(settings["ORCHARD_ENV"])))
    pids = settings.get("ORCHARD_PIDS")
    idle = settings.get("ORCHARD_IDLE_S")
    return {
        "env": env,
        "workdir": settings.get("ORCHARD_WORKDIR") or cwd,
        "ttl_s": float(settings["ORCHARD_TTL_S"]),
        "idle_s": float(idle) if idle else None,
        "pids": int(pids) if pids else None,
        "memory_bytes": None,
        "user": None,
        "own": [],
    }


def address_of(text: str) -> tuple[str, Any]:
    """ "tcp:HOST:PORT", "unix:PATH" or "unix:@NAME" (abstract) as a key of SOCKETS and what bind and connect take."""
    kind, _, rest = text.partition(":")
    host, _, port = rest.rpartition(":")
    if kind == "unix" and rest:
        return kind, "\0" + rest[1:] if rest[0] == "@" else rest
    if kind == "tcp" and port.isdigit():
        host = host.strip("[]")
        return ("tcp6" if ":" in host else kind), (host, int(port))
    raise SystemExit(f"sandboxd: an address is tcp:HOST:PORT or unix:PATH, not {text!r}")


def log(message: str) -> None:
    """A line in the container's log."""
    sys.stderr.write(f"sandboxd: {message}\n")
    sys.stderr.flush()


class Door:
    """Accepts connections and lets in those who know the key."""

    def __init__(self, loop: Loop, server: Server, key: bytes, identity: str) -> None:
        if len(key) != auth.KEY_BYTES:
            raise SystemExit(f"sandboxd: ORCHARD_SANDBOX_KEY must be {auth.KEY_BYTES} bytes in hex")
        self.loop = loop
        self.server = server
        self.key = key
        self.identity = identity
        self.strangers: set[Stranger] = set()
        self._orphan_s: float | None = None
        self._last_seen = time.monotonic()

    def open(self, address: str) -> None:
        """Listen on an address as `address_of` takes it."""
        kind, where = address_of(address)
        sock = socket.socket(SOCKETS[kind], socket.SOCK_STREAM)
        if kind != "unix":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(128)
        sock.setblocking(False)
        self.loop.watch(sock.fileno(), READ, lambda _events: self._accept(sock))

    def end_when_orphaned(self, patience_s: float) -> None:
        """End the sandbox once it has been without a proven client for `patience_s`."""
        self._orphan_s = patience_s
        self.loop.after(patience_s, self._look_for_orphan)

    def left(self) -> None:
        """A proven client has gone."""
        self._last_seen = time.monotonic()
        if self._orphan_s is not None:
            self.loop.after(self._orphan_s, self._look_for_orphan)

    def _look_for_orphan(self) -> None:
        assert self._orphan_s is not None
        if not self.server.connections and time.monotonic() - self._last_seen >= self._orphan_s:
            log("its client has gone")
            self.loop.stop()

    def _accept(self, listener: socket.socket) -> None:
        try:
            fd, address = listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return  # the peer has already gone, or there are no descriptors left; it may try again
        sock = socket.socket(fileno=fd)
        if len(self.strangers) >= _MAX_STRANGERS:
            # The one that has kept us waiting longest; a client that means it is through in milliseconds.
            min(self.strangers, key=lambda stranger: stranger.number).refuse("too many unproven connections")
        sock.setblocking(False)
        _tune(sock)
        Stranger(self, sock, str(address[0]) if isinstance(address, tuple) else "the unix socket")


def _tune(sock: socket.socket) -> None:
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A client's machine that vanished must not keep its streams for ever.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


class Stranger:
    """A connection that has not proven itself yet."""

    _count = 0

    def __init__(self, door: Door, sock: socket.socket, origin: str) -> None:
        Stranger._count += 1
        self.number = Stranger._count
        self._door = door
        self._sock = sock
        self._origin = origin
        self._parser = wire.FrameParser(auth.MAX_PAYLOAD)
        self._client_nonce: bytes | None = None
        self._nonce = os.urandom(auth.NONCE_BYTES)
        self._timer: Timer = door.loop.after(
            _AUTH_PATIENCE_S, lambda: self.refuse("it did not prove itself in time")
        )
        door.strangers.add(self)
        door.loop.watch(sock.fileno(), READ, self._on_ready)

    def refuse(self, reason: str) -> None:
        """Close the connection and say why in the log."""
        log(f"refused a connection from {self._origin}: {reason}")
        self._leave()
        self._sock.close()

    def _leave(self) -> None:
        self._timer.cancel()
        self._door.strangers.discard(self)
        self._door.loop.unwatch(self._sock.fileno())

    def _on_ready(self, _events: int) -> None:
        try:
            data = self._sock.recv(auth.MAX_PAYLOAD)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.refuse("it left before it proved itself")
            return
        try:
            frames = list(self._parser.feed(data))
            for index, (kind, _stream, payload) in enumerate(frames):
                message = wire.unpack(payload) if kind == wire.AUTH else None
                if not isinstance(message, dict):
                    raise wire.WireError("not an AUTH frame")
                if self._client_nonce is None:
                    self._challenge(message)
                elif not auth.same(message.get("proof"), self._expected()):
                    self.refuse("it does not know the key")
                    return
                elif index + 1 < len(frames):
                    raise wire.WireError("it spoke before it was let in")
                else:
                    self._leave()
                    self._door.server.take(self._sock, self._door.left)
                    return
        except wire.WireError as error:
            self.refuse(str(error))
        except OSError as error:
            self.refuse(error.strerror or "it left")

    def _challenge(self, message: dict[str, Any]) -> None:
        nonce = auth.as_nonce(message.get("nonce"))
        if nonce is None or message.get("version") != wire.VERSION:
            raise wire.WireError(f"it does not speak version {wire.VERSION} of the protocol")
        self._client_nonce = nonce
        door = self._door
        answer = {
            "version": wire.VERSION,
            "identity": door.identity,
            "nonce": self._nonce,
            "proof": auth.proof(door.key, auth.SANDBOXD, nonce, self._nonce, door.identity),
        }
        self._sock.send(wire.frame(wire.AUTH, 0, wire.pack(answer)))

    def _expected(self) -> bytes:
        assert self._client_nonce is not None
        return auth.proof(self._door.key, auth.CLIENT, self._client_nonce, self._nonce, self._door.identity)
