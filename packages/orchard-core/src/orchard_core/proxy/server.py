"""The recording proxy's HTTP server: the model endpoint that harnesses talk to."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import socket
from collections import OrderedDict
from contextlib import aclosing
from typing import Any

import orjson
from aiohttp import web

from orchard_core.engine.protocol import Engine, Renderer
from orchard_core.errors import InfrastructureError, UsageError
from orchard_core.proxy.attempt import Attempt
from orchard_core.proxy.dialects import chat
from orchard_core.proxy.errors import CallRefused
from orchard_core.proxy.session import Session, SessionPolicy

_log = logging.getLogger(__name__)
BODY_LIMIT = 64 * 2**20
"""Bytes of a request body: long contexts with screenshots fit."""
_ROLLOUT_ID = re.compile(r"[A-Za-z0-9._~-]{1,200}")
_REMEMBERED = 10_000
"""How many sealed sessions are remembered, so that stragglers learn that their rollout is over."""


class RecordingProxy:
    """Serves OpenAI chat completions to harnesses and records every call as token facts.

    One server serves any number of sessions. `renderer` gives token ids to what message engines answer;
    token engines bring their own. Everything runs on the loop that calls `start`.
    """

    def __init__(
        self, engine: Engine, *, host: str = "127.0.0.1", port: int = 0, renderer: Renderer | None = None
    ) -> None:
        self._engine = engine
        self._renderer = renderer
        self._host, self._port = host, port
        self._sessions: dict[str, Session] = {}
        self._sealed: OrderedDict[str, str] = OrderedDict()
        self._runner: web.AppRunner | None = None
        self._address: tuple[str, int] | None = None

    async def start(self) -> None:
        """Bind and serve. Raises InfrastructureError if the address can't be bound."""
        app = web.Application(client_max_size=BODY_LIMIT)
        app.router.add_post("/r/{rollout}/v1/chat/completions", self._chat)
        app.router.add_get("/r/{rollout}/v1/models", self._models)
        app.router.add_route("*", "/{path:.*}", self._elsewhere)
        # Without handler cancellation a client that hangs up would go unnoticed until the reply is written.
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, self._host, self._port)
        try:
            await site.start()
        except (OSError, socket.gaierror) as error:
            await runner.cleanup()
            raise InfrastructureError(
                f"the proxy can't listen on {self._host}:{self._port} ({error}); choose another address"
            ) from error
        self._runner = runner
        host, port = runner.addresses[0][:2]
        self._address = (str(host), int(port))

    @property
    def address(self) -> tuple[str, int]:
        """Host and port. Raises UsageError before `start`."""
        if self._address is None:
            raise UsageError("the proxy is not running; await start() first")
        return self._address

    async def close(self) -> None:
        """Seal what is open and stop serving; the engine stays the caller's."""
        for session in list(self._sessions.values()):
            session.seal()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = self._address = None

    def open_session(
        self, rollout_id: str, policy: SessionPolicy, *, engine: Engine | None = None
    ) -> Session:
        """Begin a rollout's session; `engine` overrides the proxy's (a teacher beside a student).

        Raises UsageError if the id is in use or can't be part of a URL path.
        """
        if not _ROLLOUT_ID.fullmatch(rollout_id):
            raise UsageError(f"rollout id {rollout_id!r} must be 1 to 200 letters, digits or any of . _ ~ -")
        if rollout_id in self._sessions:
            raise UsageError(f"rollout {rollout_id} has an open session; seal it first")
        self._sealed.pop(rollout_id, None)
        session = Session(rollout_id, policy, engine or self._engine, self._renderer, self._forget)
        self._sessions[rollout_id] = session
        return session

    def _forget(self, session: Session) -> None:
        self._sessions.pop(session.rollout_id, None)
        self._sealed[session.rollout_id] = session.secret
        while len(self._sealed) > _REMEMBERED:
            self._sealed.popitem(last=False)

    def _authorised(self, request: web.Request) -> Session:
        rollout_id = request.match_info["rollout"]
        session = self._sessions.get(rollout_id)
        secret = session.secret if session is not None else self._sealed.get(rollout_id)
        if secret is None:
            raise CallRefused("unknown_session", "there is no such session")
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {secret}".encode()):
            raise CallRefused("wrong_secret", "send the session's secret as 'Authorization: Bearer SECRET'")
        if session is None:
            raise CallRefused("session_sealed", "this rollout is over; its session takes no more calls")
        return session

    async def _models(self, request: web.Request) -> web.Response:
        try:
            return _json(chat.models(self._authorised(request).shown_model))
        except CallRefused as refusal:
            return _refuse(refusal)

    async def _elsewhere(self, request: web.Request) -> web.Response:
        return _refuse(CallRefused("unknown_route", f"there is no {request.method} {request.path} here"))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        try:
            session = self._authorised(request)
            raw = await _read(request)
            body = _parse(raw)
            call = chat.parse_request(body, session.rollout_id)
            digest, retry = _identity(request, raw)
            attempt = session.admit(call, body, digest, retry)
            if call.stream:
                return await _stream(request, attempt, call.include_usage)
            response = _json((await attempt.result()).record.response)
            await response.prepare(request)
            await response.write_eof()
            attempt.delivered = True
            return response
        except CallRefused as refusal:
            return _refuse(refusal)


async def _stream(request: web.Request, attempt: Attempt, include_usage: bool) -> web.StreamResponse:
    """Send text as it is sampled. The events that end the reply are sent once the call is recorded."""
    head = attempt.head
    response: web.StreamResponse | None = None
    try:
        # Closed at once when the client is gone, so that the generation stops.
        async with aclosing(attempt.follow()) as texts:
            async for text in texts:
                if response is None:
                    response = await _open_stream(request)
                    await response.write(chat.first_chunk(head))
                await response.write(chat.content_chunk(head, text))
        generated = await attempt.result()
    except CallRefused as refusal:
        if response is None:
            raise
        await response.write(chat.error_event(refusal))
        await response.write_eof()
        return response
    opening = b""
    if response is None:
        response = await _open_stream(request)
        opening = chat.first_chunk(head)
    ending = chat.last_chunks(head, generated.record.response, generated.rest, include_usage)
    await response.write(opening + b"".join(ending))
    await response.write_eof()
    attempt.delivered = True
    return response


async def _open_stream(request: web.Request) -> web.StreamResponse:
    headers = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    return response


async def _read(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise CallRefused("body_too_large", f"the body is larger than {BODY_LIMIT} bytes") from error


def _parse(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        pass
    try:
        # Harnesses in Python may escape lone surrogates (undecodable file names); they become question marks.
        return orjson.loads(json.dumps(json.loads(raw), ensure_ascii=False).encode("utf-8", "replace"))
    except ValueError as error:
        raise CallRefused("malformed_request", f"the body is not valid JSON: {error}") from error


def _identity(request: web.Request, raw: bytes) -> tuple[bytes, bool]:
    """What makes two sends the same call, and whether the client marks this one as a re-send."""
    key = request.headers.get("Idempotency-Key", "")
    digest = hashlib.blake2b(key.encode() + b"\0" + raw, digest_size=16).digest()
    count = request.headers.get("x-stainless-retry-count", "0")
    return digest, bool(key) or (count.isdigit() and int(count) > 0)


def _json(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        body=orjson.dumps(data), status=status, content_type="application/json", headers=headers
    )


def _refuse(refusal: CallRefused) -> web.Response:
    if refusal.status >= 500:
        _log.warning("model call failed: %s", refusal)
    # Honoured by OpenAI's own clients; others go by the status.
    headers = {"x-should-retry": "true" if refusal.retriable else "false"}
    return _json(chat.error(refusal), refusal.status, headers)
