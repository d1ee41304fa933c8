"""Makes, finds and destroys pods. Their API objects are the only state: any replica serves any sandbox."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import secrets
import time
import uuid
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

from orchard_core.env.client import SandboxClient
from orchard_core.env.connection import Connection
from orchard_core.env.dial import TcpAddress
from orchard_core.env.errors import (
    SandboxExistsError,
    SandboxExpiredError,
    SandboxGoneError,
    SandboxNotFoundError,
    SandboxQuotaError,
    SandboxStartError,
    SandboxUnreachableError,
)
from orchard_core.env.handle import Provider, SandboxInfo
from orchard_core.env.link import RedialledLink, Target, dialled_link
from orchard_core.env.providers.kubernetes.api import KubernetesApi, KubernetesApiError
from orchard_core.env.providers.kubernetes.diagnosis import Diagnosis, diagnose, seconds_of
from orchard_core.env.providers.kubernetes.egress import EgressGuard
from orchard_core.env.providers.kubernetes.informer import PodInformer
from orchard_core.env.providers.kubernetes.options import KubernetesOptions
from orchard_core.env.providers.kubernetes.podspec import (
    LABELS,
    MANAGED,
    NONCE,
    SPEC_HASH,
    check_spec,
    pod_body,
    spec_hash,
    spec_of,
)
from orchard_core.env.providers.kubernetes.policies import ensure_policies
from orchard_core.env.proving import Credentials
from orchard_core.env.spec import SandboxSpec
from orchard_core.errors import UsageError
from orchard_core.options import options_from

_log = logging.getLogger(__name__)

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_DIAL_PAUSE_S = 0.02
_FINISHED_KEPT_S = 60.0
_SWEEP_S = 15.0


def kubernetes_from_options(options: Mapping[str, Any]) -> Provider:
    """The provider with a recipe's or the command line's options."""
    return KubernetesProvider(options_from(KubernetesOptions, options, "the kubernetes provider"))


class KubernetesSandbox(SandboxClient):
    """A sandbox in a pod. Leaving its context destroys it; another handle on it can be had by `attach`."""

    def __init__(
        self, provider: KubernetesProvider, pod: Mapping[str, Any], spec: SandboxSpec, link: RedialledLink
    ) -> None:
        super().__init__(link)
        self._link: RedialledLink = link
        self._provider = provider
        self._id: str = pod["metadata"]["name"]
        self._uid: str = pod["metadata"]["uid"]
        self._spec = spec

    @property
    def id(self) -> str:
        return self._id

    @property
    def spec(self) -> SandboxSpec:
        return self._spec

    async def connection(self) -> Connection:
        """The live connection to its sandboxd."""
        return await self._link.connection()

    def cut(self) -> None:
        """Break the connection: the pod is gone, and what is asked next learns why."""
        self._link.cut()

    async def close(self) -> None:
        """Destroy the pod. May be called again."""
        await self._link.close()
        await self._provider.delete_pod(self._id, self._uid)

    async def detach(self) -> None:
        """Close the connection and leave the sandbox running."""
        await self._link.close()

    async def __aenter__(self) -> KubernetesSandbox:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class KubernetesProvider:
    """Sandboxes as pods of one namespace."""

    name = "kubernetes"

    def __init__(self, options: KubernetesOptions) -> None:
        self._options = options
        self._key = options.master_key()
        self._pods_path = f"/api/v1/namespaces/{options.namespace}/pods"
        self._creating = asyncio.Semaphore(options.create_concurrency)
        self._opening = asyncio.Lock()
        self._api: KubernetesApi | None = None
        self._informer: PodInformer | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._egress: EgressGuard | None = None
        self._own: dict[str, str] = {}
        self._deleted: set[str] = set()  # the uids of pods that are gone or about to be
        self._handles: dict[str, WeakSet[KubernetesSandbox]] = {}

    # -- Provider

    async def create(self, spec: SandboxSpec, *, sandbox_id: str | None = None) -> KubernetesSandbox:
        """Make a pod and wait until its sandboxd answers.

        With `sandbox_id` it is idempotent: the same id and spec give the same sandbox. Raises UsageError
        for what a pod can't be, SandboxExistsError, SandboxQuotaError, and SandboxStartError with the
        cause, within seconds of its being known. A pod that did not come up is deleted.
        """
        return await self._started(await self.submit(spec, sandbox_id=sandbox_id), spec)

    async def submit(self, spec: SandboxSpec, *, sandbox_id: str | None = None) -> Mapping[str, Any]:
        """Make the pod and return at once; `find` and `attach` tell how it goes on."""
        check_spec(spec)
        await self._open()
        name = sandbox_id or _new_name()
        if not _NAME.fullmatch(name):
            raise UsageError(f"a sandbox's id is 1 to 63 of a-z, 0-9 and -, not {name!r}")
        lock = spec.network == "none" and await self._guard(spec).needs_lock()
        return await self._submit(name, spec, lock)

    async def _submit(self, name: str, spec: SandboxSpec, lock: bool) -> Mapping[str, Any]:
        api, informer = await self._open()
        nonce = secrets.token_hex(16)
        key = self._derive(name, nonce)
        body = pod_body(name, spec, self._image(spec), self._options, key=key, nonce=nonce, lock=lock)
        async with self._creating:
            try:
                pod = await api.create(self._pods_path, body)
            except KubernetesApiError as error:
                if error.status != 409:
                    raise _create_error(error) from error
                pod = await self._existing(api, name, spec)
        informer.put(pod)
        return dict(pod)

    async def attach(self, sandbox_id: str) -> KubernetesSandbox:
        """A handle on a sandbox that any replica made. Raises SandboxNotFoundError."""
        _api, informer = await self._open()
        pod = informer.get(sandbox_id)
        if pod is None:
            raise SandboxNotFoundError(f"there is no sandbox {sandbox_id!r}")
        return self._handle(pod, spec_of(pod))

    async def find(self, labels: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        """All sandboxes that carry `labels`, oldest first."""
        _api, informer = await self._open()
        found = [self._info(pod) for pod in informer.all()]
        wanted = (labels or {}).items()
        return sorted(
            (info for info in found if wanted <= info.labels.items()),
            key=lambda info: (info.created_at, info.id),
        )

    async def destroy(self, sandbox_id: str) -> None:
        """Delete a sandbox's pod. Raises SandboxNotFoundError."""
        _api, informer = await self._open()
        pod = informer.get(sandbox_id)
        if pod is None:
            raise SandboxNotFoundError(f"there is no sandbox {sandbox_id!r}")
        await self.delete_pod(sandbox_id, pod["metadata"]["uid"])

    async def close(self) -> None:
        """Destroy the sandboxes that this provider made, and let go of the cluster."""
        await asyncio.gather(*(self.delete_pod(name, uid) for name, uid in list(self._own.items())))
        await self.disconnect()

    async def disconnect(self) -> None:
        """Let go of the cluster and leave all sandboxes running."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        if self._informer is not None:
            await self._informer.stop()
        if self._api is not None:
            await self._api.close()
        self._api = self._informer = self._sweeper = None

    async def __aenter__(self) -> KubernetesProvider:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # -- pods

    async def delete_pod(self, name: str, uid: str) -> None:
        """Delete the pod that has this uid; one that is gone, or another of its name, is left in peace."""
        self._own.pop(name, None)
        self._deleted.add(uid)
        self._cut(name)
        if self._api is None:
            return
        try:
            await self._api.delete(f"{self._pods_path}/{name}", uid)
        except KubernetesApiError as error:
            if error.status != 409:
                raise

    async def sweep(self) -> int:
        """Delete pods that have ended some time ago; returns how many. Any replica may, at any time."""
        _api, informer = await self._open()
        ended = [
            pod for pod in informer.all() if self._look(pod).status in ("failed", "gone") and _stale(pod)
        ]
        await asyncio.gather(
            *(self.delete_pod(pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in ended)
        )
        return len(ended)

    # -- inside

    async def _started(self, pod: Mapping[str, Any], spec: SandboxSpec) -> KubernetesSandbox:
        self._own[pod["metadata"]["name"]] = pod["metadata"]["uid"]
        sandbox = self._handle(pod, spec)
        try:
            await self._await_ready(pod, sandbox)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def _guard(self, spec: SandboxSpec) -> EgressGuard:
        """What is found out with the first image holds for all: the network is the cluster's."""
        if self._egress is None:
            assert self._api is not None
            image = self._image(spec)

            async def make(lock: bool) -> KubernetesSandbox:
                probe = SandboxSpec(image=image, workdir="/tmp", ttl_s=120.0)
                return await self._started(await self._submit(_new_name(), probe, lock), probe)

            self._egress = EgressGuard(self._options, self._api.host, make)
        return self._egress

    async def _open(self) -> tuple[KubernetesApi, PodInformer]:
        async with self._opening:
            if self._api is None or self._informer is None:
                api = await KubernetesApi.connect(self._options)
                informer = PodInformer(api, self._options.namespace, f"{MANAGED}=true", self._cut)
                try:
                    await informer.start()
                    if self._options.network_policies:
                        await ensure_policies(api, self._options)
                except BaseException:
                    await informer.stop()
                    await api.close()
                    raise
                self._api, self._informer = api, informer
                self._sweeper = asyncio.create_task(self._sweep_for_ever())
            return self._api, self._informer

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            try:
                await self.sweep()
            except KubernetesApiError as error:
                _log.warning("sweeping ended pods: %s", error)

    async def _existing(self, api: KubernetesApi, name: str, spec: SandboxSpec) -> Mapping[str, Any]:
        """The pod that has the name already: ours by an earlier try, or somebody else's."""
        pod: Mapping[str, Any] = await api.get(f"{self._pods_path}/{name}")
        labels = pod["metadata"].get("labels", {})
        if labels.get(SPEC_HASH) != spec_hash(spec) or "deletionTimestamp" in pod["metadata"]:
            raise SandboxExistsError(f"there is a sandbox {name!r} already, for another spec")
        return pod

    def _handle(self, pod: Mapping[str, Any], spec: SandboxSpec) -> KubernetesSandbox:
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        key = self._derive(name, pod["metadata"]["annotations"][NONCE])

        async def locate() -> Target:
            return self._locate(name, uid, key)

        sandbox = KubernetesSandbox(self, pod, spec, dialled_link(locate))
        self._handles.setdefault(name, WeakSet()).add(sandbox)
        return sandbox

    def _cut(self, name: str) -> None:
        """A pod is gone for the API server; its processes may take a moment longer, of no use to anybody."""
        for sandbox in self._handles.pop(name, ()):
            sandbox.cut()

    def _locate(self, name: str, uid: str, key: bytes) -> Target:
        """Where the pod is now. Raises SandboxGoneError with the reason once it is no more."""
        if self._informer is None or uid in self._deleted:
            raise _gone(Diagnosis("gone", "its pod was deleted"))
        pod = self._informer.get(name)
        if pod is None or pod["metadata"]["uid"] != uid:
            last = self._informer.last(name)
            look = self._look(last) if last is not None and last["metadata"]["uid"] == uid else None
            raise _gone(
                look
                if look and look.status in ("failed", "gone")
                else Diagnosis("gone", "its pod was deleted")
            )
        look = self._look(pod)
        if look.status in ("failed", "gone"):
            raise _gone(look)
        address = pod.get("status", {}).get("podIP")
        if not address:
            raise SandboxUnreachableError(f"the sandbox has no address yet: {look.why}")
        return Target(TcpAddress(address, self._options.port), Credentials(key, uid))

    async def _await_ready(self, pod: Mapping[str, Any], sandbox: KubernetesSandbox) -> None:
        """Until sandboxd answers. It is dialled as soon as the pod has an address: the kubelet's word comes later."""
        assert self._informer is not None
        name, deadline = pod["metadata"]["name"], time.monotonic() + self._options.start_timeout_s
        while time.monotonic() < deadline:
            await self._informer.wait(name, self._moved, 1.0)
            try:
                async with asyncio.timeout(5):
                    await sandbox.connection()
                return
            except SandboxGoneError as error:
                raise SandboxStartError(str(error).replace("is gone", "did not start", 1)) from error
            except (SandboxUnreachableError, TimeoutError):
                await asyncio.sleep(_DIAL_PAUSE_S)
        raise SandboxStartError(
            f"the sandbox did not start within {self._options.start_timeout_s:g} s: "
            f"{self._look(self._informer.get(name) or pod).why}"
        )

    def _moved(self, pod: Mapping[str, Any] | None) -> bool:
        return pod is None or self._look(pod).status != "pending" or bool(pod.get("status", {}).get("podIP"))

    def _look(self, pod: Mapping[str, Any]) -> Diagnosis:
        return diagnose(pod, self._options.unschedulable_s, time.time())

    def _info(self, pod: Mapping[str, Any]) -> SandboxInfo:
        look, spec = self._look(pod), spec_of(pod)
        created = seconds_of(pod["metadata"]["creationTimestamp"])
        return SandboxInfo(
            id=pod["metadata"]["name"],
            status=look.status,
            message=look.why,
            image=self._image(spec),
            labels=json.loads(pod["metadata"]["annotations"].get(LABELS, "{}")),
            created_at=created,
            expires_at=created + spec.ttl_s,
        )

    def _image(self, spec: SandboxSpec) -> str:
        image = self._options.image if spec.image == "host" else spec.image
        if image is None:
            raise UsageError(
                'the kubernetes provider needs an image: set it in the spec, or the option "image"'
            )
        return image

    def _derive(self, name: str, nonce: str) -> bytes:
        """The sandbox's own key, which every replica that has the master key finds anew."""
        return hmac.digest(self._key, f"{name}\0{nonce}".encode(), hashlib.sha256)


def _new_name() -> str:
    return f"orchard-{uuid.uuid4().hex[:12]}"


def _gone(look: Diagnosis) -> SandboxGoneError:
    kind = SandboxExpiredError if look.expired else SandboxGoneError
    return kind(f"the sandbox is gone: {look.why}")


def _create_error(error: KubernetesApiError) -> Exception:
    if error.status == 403 and "quota" in error.message:
        return SandboxQuotaError(f"the namespace's quota does not allow another sandbox: {error.message}")
    if error.status == 422:
        return UsageError(f"the cluster does not take this sandbox: {error.message}")
    if error.status == 403:
        return SandboxStartError(f"this account may not make pods: {error.message}")
    return SandboxStartError(f"the pod could not be made: {error}")


def _stale(pod: Mapping[str, Any]) -> bool:
    """Whether a pod that has ended may be removed: its reason was there to be read for a while."""
    ended = [
        seconds_of(state["terminated"]["finishedAt"])
        for container in pod.get("status", {}).get("containerStatuses", ())
        if (state := container.get("state", {})).get("terminated", {}).get("finishedAt")
    ]
    since = max(ended, default=seconds_of(pod["metadata"]["creationTimestamp"]))
    return time.time() - since > _FINISHED_KEPT_S
