"""One rollout end to end: task, sandbox, harness, proxy session, result, reward, trajectory."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from orchard_core.domain.protocol import Domain
from orchard_core.domain.types import Reward, Task
from orchard_core.engine.protocol import Engine
from orchard_core.env.errors import SandboxFileError
from orchard_core.env.handle import Provider, Sandbox
from orchard_core.env.spec import Mount, SandboxSpec
from orchard_core.errors import InfrastructureError
from orchard_core.harness.protocol import Harness, HarnessLimits, ModelEndpoint
from orchard_core.proxy import RecordingProxy, SealedSession, Session, SessionPolicy
from orchard_core.rollout.attribution import attribute, from_error
from orchard_core.trajectory.types import Lineage, Outcome, Trajectory

MODEL_PORT = 8399
"""Where the harness finds its model: a port of the sandbox's own loopback, so it never collides."""
HARNESS_OUTPUT = 1 << 16
SETTLE_TRIES = 200
SPARE_S = 600.0
"""For preparing and collecting, on top of the harness's own time."""
ENDED_BY_AGENT = ("submitted", "final")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """What to roll out. `id` names the trajectory and must be fit for a URL path; `engine` overrides
    the proxy's; `tags` are added to the task's on the trajectory."""

    id: str
    task: Task
    harness: Harness
    lineage: Lineage
    limits: HarnessLimits = field(default_factory=HarnessLimits)
    policy: SessionPolicy = field(default_factory=SessionPolicy)
    engine: Engine | None = None
    tags: Mapping[str, str] = field(default_factory=dict)


class PhaseClock:
    """Seconds spent in each phase, and which one is running."""

    def __init__(self) -> None:
        self.timings: dict[str, float] = {}
        self.phase = "start"

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self.phase = phase
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.timings[phase] = self.timings.get(phase, 0.0) + time.perf_counter() - begun


class RolloutRunner:
    """Runs requests of one domain. Holds no state of a rollout, so any number may run at once."""

    def __init__(self, domain: Domain, provider: Provider, proxy: RecordingProxy) -> None:
        self._domain = domain
        self._provider = provider
        self._proxy = proxy

    async def run(self, request: RolloutRequest) -> Trajectory:
        """Roll out once. Infrastructure failures become an aborted trajectory; UsageErrors (a harness
        that can't be installed, a domain that asks the impossible) are raised.

        Cancelling seals the session and destroys the sandbox.
        """
        started = time.time()
        clock = PhaseClock()
        mounts = await request.harness.install()
        session = self._proxy.open_session(request.id, request.policy, engine=request.engine)
        model = session.shown_model
        result: Mapping[str, bytes] | None = None
        sealed: SealedSession | None = None
        try:
            outcome, result = await self._episode(request, session, mounts, clock)
            await _settle(session)
            sealed = session.seal()
            outcome = attribute(outcome, sealed)
        except InfrastructureError as error:
            outcome = from_error(error, clock.phase)
        finally:
            sealed = sealed or session.seal()
        outcome, reward = await self._judge(request.task, outcome, result, clock)
        _log.info(
            "rollout %s of task %s: %s (%s)", request.id, request.task.id, outcome.status, outcome.cause
        )
        return Trajectory(
            id=request.id,
            task_id=request.task.id,
            domain=request.task.domain,
            harness=f"{request.harness.name}@{request.harness.version}",
            model=model,
            calls=sealed.calls,
            outcome=outcome,
            reward=reward,
            lineage=request.lineage,
            result=result or {},
            tags={**request.task.tags, **request.tags},
            started_at=started,
            finished_at=time.time(),
            timings=clock.timings,
        )

    async def _episode(
        self, request: RolloutRequest, session: Session, mounts: tuple[Mount, ...], clock: PhaseClock
    ) -> tuple[Outcome, Mapping[str, bytes] | None]:
        """All that happens in the agent's sandbox. The result is None when there is nothing to grade."""
        with clock("sandbox_start"):
            sandbox = await self._provider.create(_spec(request, mounts))
        async with sandbox:
            with clock("prepare"):
                await self._domain.prepare(request.task, sandbox)
            with clock("harness"):
                outcome = await self._launch(request, session, sandbox)
            if outcome.status == "aborted":
                return outcome, None
            with clock("collect"):
                try:
                    return outcome, await self._domain.collect(request.task, sandbox)
                except SandboxFileError as error:
                    # The agent had the sandbox to itself: what is missing there, it never made or removed.
                    cause = "no_result" if outcome.cause in ENDED_BY_AGENT else outcome.cause
                    return dataclasses.replace(outcome, cause=cause, detail=str(error)), None

    async def _launch(self, request: RolloutRequest, session: Session, sandbox: Sandbox) -> Outcome:
        limits = request.limits
        base_url = f"http://127.0.0.1:{MODEL_PORT}{session.base_path}"
        endpoint = ModelEndpoint(base_url, session.secret, session.shown_model)
        launch = request.harness.launch(request.task, endpoint, limits)
        await sandbox.tunnel(MODEL_PORT, self._proxy.address)
        for path, data in launch.files.items():
            await sandbox.write_file(path, data)
        ended = await sandbox.exec(
            launch.argv,
            exec_id=f"harness-{request.id}",
            env=launch.env,
            cwd=launch.cwd or sandbox.spec.workdir,
            timeout=limits.timeout_s,
            max_output=HARNESS_OUTPUT,
        )
        return await request.harness.classify(ended, sandbox, limits)

    async def _judge(
        self, task: Task, outcome: Outcome, result: Mapping[str, bytes] | None, clock: PhaseClock
    ) -> tuple[Outcome, Reward]:
        if outcome.status == "aborted":
            return outcome, Reward.none(f"{outcome.cause}: {outcome.detail}")
        if result is None:
            return outcome, Reward.failure(reason=outcome.detail)
        with clock("grade"):
            try:
                return outcome, await self._domain.grade(task, result, self._provider)
            except InfrastructureError as error:
                aborted = from_error(error, "grade")
                return aborted, Reward.none(f"{aborted.cause}: {aborted.detail}")


async def _settle(session: Session) -> None:
    """Let calls that the harness left behind notice that it is gone; else they'd count as lost by us."""
    for _ in range(SETTLE_TRIES):
        if not session.in_flight:
            return
        await asyncio.sleep(0.01)


def _spec(request: RolloutRequest, mounts: tuple[Mount, ...]) -> SandboxSpec:
    """The task's spec with the harness's mounts, and a life that outlasts the harness's time."""
    spec = request.task.sandbox
    return dataclasses.replace(
        spec,
        mounts=spec.mounts + tuple(mount for mount in mounts if mount not in spec.mounts),
        labels={**spec.labels, "rollout": request.id},
        ttl_s=max(spec.ttl_s, request.limits.timeout_s + SPARE_S),
    )
