"""What pods there are, kept up to date by list and watch."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from orchard_core.env.errors import SandboxError
from orchard_core.env.providers.kubernetes.api import KubernetesApi, KubernetesApiError

_log = logging.getLogger(__name__)

_GONE = 410
_LONGEST_PAUSE_S = 5.0
_REMEMBERED = 4096


class PodInformer:
    """A cache of the pods that match a selector.

    It removes a pod only when the API server says that it is gone: by an event, or by a list that
    succeeded. While the server can't be asked, what was known last stays.
    """

    def __init__(
        self, api: KubernetesApi, namespace: str, selector: str, on_gone: Callable[[str], None]
    ) -> None:
        """`on_gone(name)` is called when a pod is known to be gone."""
        self._api = api
        self._on_gone = on_gone
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._selector = selector
        self._pods: dict[str, dict[str, Any]] = {}
        self._last: dict[str, dict[str, Any]] = {}  # the last that was seen of pods that are gone
        self._changed: dict[str, list[asyncio.Event]] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin; returns once the first list has been made, whose errors it raises."""
        version = await self._list()
        self._task = asyncio.create_task(self._follow(version))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def get(self, name: str) -> Mapping[str, Any] | None:
        return self._pods.get(name)

    def last(self, name: str) -> Mapping[str, Any] | None:
        """What was last seen of a pod that is gone."""
        return self._last.get(name)

    def all(self) -> list[Mapping[str, Any]]:
        return list(self._pods.values())

    def put(self, pod: dict[str, Any]) -> None:
        """Take in what an answer of the API server showed, unless something newer is known."""
        name = pod["metadata"]["name"]
        known = self._pods.get(name)
        if known is None or known["metadata"]["uid"] != pod["metadata"]["uid"]:
            self._pods[name] = pod
            self._tell(name)

    async def wait(
        self, name: str, enough: Callable[[Mapping[str, Any] | None], bool], timeout_s: float
    ) -> bool:
        """Wait until `enough(pod)`, looked at on every change; says whether it came to it in time."""
        event = asyncio.Event()
        self._changed.setdefault(name, []).append(event)
        try:
            async with asyncio.timeout(timeout_s):
                while not enough(self._pods.get(name)):
                    event.clear()
                    await event.wait()
            return True
        except TimeoutError:
            return False
        finally:
            waiting = self._changed[name]
            waiting.remove(event)
            if not waiting:
                del self._changed[name]

    async def _follow(self, version: str | None) -> None:
        pause = 0.1
        while True:
            try:
                if version is None:
                    version = await self._list()
                version = await self._watch(version)
                pause = 0.1
            except KubernetesApiError as error:
                if error.status == _GONE:
                    version = None  # too old: list anew
                    continue
                _log.warning("watching pods: %s", error)
                await asyncio.sleep(pause)
            except (SandboxError, aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                _log.warning("watching pods: %s", error)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _list(self) -> str:
        found = await self._api.get(self._path, labelSelector=self._selector)
        pods = {pod["metadata"]["name"]: pod for pod in found["items"]}
        for name in set(self._pods) - set(pods):
            self._remove(name)
        for name, pod in pods.items():
            self._pods[name] = pod
            self._tell(name)
        version: str = found["metadata"]["resourceVersion"]
        return version

    async def _watch(self, version: str) -> str:
        query = {"labelSelector": self._selector, "resourceVersion": version}
        async with self._api.watch(self._path, **query) as events:
            async for event in events:
                pod = event["object"]
                version = pod["metadata"]["resourceVersion"]
                if event["type"] == "BOOKMARK":
                    continue
                name = pod["metadata"]["name"]
                if event["type"] == "DELETED":
                    self._last[name] = pod
                    if self._pods.get(name, pod)["metadata"]["uid"] == pod["metadata"]["uid"]:
                        self._remove(name)
                else:
                    self._pods[name] = pod
                    self._tell(name)
        return version

    def _remove(self, name: str) -> None:
        pod = self._pods.pop(name, None)
        if pod is not None:
            self._last.setdefault(name, pod)
        while len(self._last) > _REMEMBERED:
            del self._last[next(iter(self._last))]
        self._on_gone(name)
        self._tell(name)

    def _tell(self, name: str) -> None:
        for event in self._changed.get(name, ()):
            event.set()
