"""The Kubernetes API over the official client: raw objects, typed errors, patient retries.

The client's generated models are not used: to build and check some thousand pods with them costs more
than all else the provider does.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio import client, config

from orchard_core.env.errors import ProviderUnavailableError, SandboxError
from orchard_core.env.providers.kubernetes.options import KubernetesOptions

_log = logging.getLogger(__name__)

_TRIES = 8
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_TIMEOUT_S = 30.0
_WATCH_S = 240
_RETRIED = frozenset({429, 500, 502, 503, 504})
_NETWORK = (aiohttp.ClientError, TimeoutError, OSError)


class KubernetesApiError(SandboxError):
    """The API server refused a request. `status` is its HTTP status, `reason` its word for why."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"the Kubernetes API server answered {status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class KubernetesUnreachableError(SandboxError):
    """The API server does not answer."""


class KubernetesApi:
    """One cluster's API."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api
        self._host: str = api.configuration.host

    @classmethod
    async def connect(cls, options: KubernetesOptions) -> KubernetesApi:
        """By kubeconfig, else by the service account of the pod that this runs in."""
        configuration = client.Configuration()
        try:
            await config.load_config(
                config_file=options.kubeconfig, context=options.context, client_configuration=configuration
            )
        except (config.ConfigException, OSError, TypeError) as error:
            raise ProviderUnavailableError(
                f"there is no Kubernetes cluster to be found ({error}); set KUBECONFIG, or the option kubeconfig"
            ) from error
        configuration.connection_pool_maxsize = 100
        return cls(client.ApiClient(configuration))

    @property
    def host(self) -> str:
        """The API server's URL."""
        return self._host

    async def close(self) -> None:
        await self._api.close()

    async def get(self, path: str, **query: str) -> Any:
        return await self._patiently("GET", path, query)

    async def create(self, path: str, body: Mapping[str, Any], **query: str) -> Any:
        """POST. A retry after a lost answer may meet 409: the caller knows whether the object is its own."""
        return await self._patiently("POST", path, query, body)

    async def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """A merge patch; with metadata.resourceVersion it is a compare-and-set (409 on a conflict)."""
        return await self._patiently("PATCH", path, {}, body, "application/merge-patch+json")

    async def delete(self, path: str, uid: str | None = None, grace_s: int = 0) -> None:
        """DELETE; with `uid`, only that very object (409 if it is another). An object that is gone is no error."""
        body: dict[str, Any] = {"gracePeriodSeconds": grace_s}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            await self._patiently("DELETE", path, {}, body)
        except KubernetesApiError as error:
            if error.status != 404:
                raise

    @asynccontextmanager
    async def watch(self, path: str, **query: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The events of a collection, from `resourceVersion` on, until the server ends the watch."""
        query = {**query, "watch": "1", "allowWatchBookmarks": "1", "timeoutSeconds": str(_WATCH_S)}
        response = await self._send("GET", path, query, None, "application/json", _WATCH_S + 30.0)
        try:
            yield _events(response)
        finally:
            response.close()

    async def _patiently(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Any:
        """Send; again, with growing pauses, while the server is overloaded or does not answer."""
        pause = _FIRST_PAUSE_S
        for remaining in reversed(range(_TRIES)):
            wait = pause * random.uniform(0.5, 1.0)
            try:
                response = await self._send(method, path, query, body, content_type, _TIMEOUT_S)
                async with response:
                    return json.loads(await response.read())
            except KubernetesApiError as error:
                if error.status not in _RETRIED or not remaining:
                    raise
                _log.info("%s %s: %s; trying again", method, path, error)
            except _NETWORK as error:
                if not remaining:
                    raise KubernetesUnreachableError(
                        f"the Kubernetes API server {self._host} does not answer: {error}"
                    ) from error
            await asyncio.sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        raise AssertionError("unreachable")

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
        content_type: str,
        timeout_s: float,
    ) -> aiohttp.ClientResponse:
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = f"{self._host}{path}" + (f"?{urlencode(query)}" if query else "")
        wrapped = await self._api.rest_client.request(
            method, url, headers=headers, body=body, _request_timeout=aiohttp.ClientTimeout(total=timeout_s)
        )
        response: aiohttp.ClientResponse = wrapped.response
        if response.status >= 400:
            async with response:
                raise _error(response.status, await response.read())
        return response


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    while line := await response.content.readline():
        event = json.loads(line)
        if event["type"] == "ERROR":
            status = event["object"]
            raise KubernetesApiError(
                int(status.get("code", 500)), str(status.get("reason")), str(status.get("message"))
            )
        yield event


def _error(status: int, data: bytes) -> KubernetesApiError:
    try:
        said = json.loads(data)
        return KubernetesApiError(status, str(said.get("reason")), str(said.get("message")))
    except (ValueError, AttributeError):
        return KubernetesApiError(status, "", data.decode("utf-8", "replace")[:300])
