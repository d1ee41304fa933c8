"""A message engine over any endpoint that speaks OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from orchard_core.engine.errors import ContextOverflowError, EngineError
from orchard_core.engine.protocol import ChatReply, ChatRequest, FinishReason, SamplingParams
from orchard_core.errors import UsageError

_FINISH: Mapping[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "abort": "abort",
}
_OVERFLOW_MARKS = ("context_length_exceeded", "maximum context length", "context length", "too many tokens")


class OpenAIEngine:
    """A `MessageEngine` that posts to `{base_url}/chat/completions`.

    Nothing is retried: a repeated sample would be another sample. With `token_ids` it asks for the
    ids the server used (`return_token_ids`, known to vLLM) and takes them if they come; with
    `logprobs` it asks for each sampled token's log-probability. `extra_body` joins every request.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        token_ids: bool = False,
        logprobs: bool = False,
        timeout_s: float | None = None,
        extra_body: Mapping[str, Any] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`timeout_s` bounds a whole generation; None waits as long as the server does."""
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.AsyncClient(
            base_url=base_url.rstrip("/"),
            headers=headers,
            timeout=httpx.Timeout(timeout_s, connect=30.0),
            limits=httpx.Limits(max_connections=None),
            transport=transport,
        )
        self._model = model
        self._token_ids = token_ids
        self._logprobs = logprobs
        self._extra = dict(extra_body or {})

    @property
    def model(self) -> str:
        return self._model

    async def complete(self, request: ChatRequest) -> ChatReply:
        """Raises ContextOverflowError, UsageError (the server refuses the request), EngineError."""
        try:
            response = await self._client.post("/chat/completions", json=self._body(request))
        except httpx.TimeoutException as error:
            raise EngineError(f"{self._model}: the endpoint did not answer in time") from error
        except httpx.HTTPError as error:
            raise EngineError(f"{self._model}: the endpoint can't be reached: {error}") from error
        _check_status(response, self._model)
        try:
            return _reply(response.json())
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise EngineError(
                f"{self._model}: the endpoint's answer is no chat completion: {error!r}"
            ) from error

    async def close(self) -> None:
        await self._client.aclose()

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            **request.extra,
            **self._extra,
            "model": self._model,
            "messages": [dict(message) for message in request.messages],
            "stream": False,
            **_sampling(request.sampling),
        }
        body.pop("stream_options", None)
        if request.tools:
            body["tools"] = [dict(tool) for tool in request.tools]
        if self._token_ids:
            body["return_token_ids"] = True
        if self._logprobs:
            body["logprobs"] = True
        return body


def _sampling(params: SamplingParams) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "max_tokens": params.max_tokens,
    }
    if params.top_k:
        fields["top_k"] = params.top_k
    if params.seed is not None:
        fields["seed"] = params.seed
    if params.stop_token_ids:
        fields["stop_token_ids"] = list(params.stop_token_ids)
    return fields


def _check_status(response: httpx.Response, model: str) -> None:
    if response.is_success:
        return
    detail = response.text[:500]
    if response.status_code in (400, 413) and any(mark in detail.lower() for mark in _OVERFLOW_MARKS):
        raise ContextOverflowError(f"{model}: the prompt does not fit the context: {detail}")
    if response.status_code in (400, 404, 422):
        raise UsageError(f"{model}: the endpoint refuses the request ({response.status_code}): {detail}")
    if response.status_code in (401, 403):
        raise UsageError(f"{model}: the endpoint refuses the API key ({response.status_code})")
    raise EngineError(f"{model}: the endpoint failed ({response.status_code}): {detail}")


def _reply(data: dict[str, Any]) -> ChatReply:
    choice = data["choices"][0]
    message = {key: value for key, value in choice["message"].items() if value is not None}
    message.setdefault("content", "")
    usage = data.get("usage") or {}
    token_ids = choice.get("token_ids")
    logprobs = _token_logprobs(choice)
    if token_ids is not None and logprobs is not None and len(token_ids) != len(logprobs):
        logprobs = None
    prompt_ids = data.get("prompt_token_ids", choice.get("prompt_token_ids"))
    return ChatReply(
        message=message,
        finish_reason=_FINISH.get(choice.get("finish_reason") or "stop", "stop"),
        prompt_ids=None if prompt_ids is None else tuple(prompt_ids),
        token_ids=None if token_ids is None else tuple(token_ids),
        logprobs=logprobs,
        prompt_tokens=usage.get("prompt_tokens") or 0,
        completion_tokens=usage.get("completion_tokens") or 0,
    )


def _token_logprobs(choice: Mapping[str, Any]) -> tuple[float, ...] | None:
    entries = (choice.get("logprobs") or {}).get("content")
    return None if entries is None else tuple(float(entry["logprob"]) for entry in entries)
