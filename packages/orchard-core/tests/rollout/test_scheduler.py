"""Many rollouts: bounded, resumable, retried only for infrastructure failures."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from rollout_kit import SOLVE, SUBMIT, Place, bash, in_order

from orchard_core.engine.errors import EngineError
from orchard_core.engine.protocol import ChatRequest
from orchard_core.errors import UsageError
from orchard_core.rollout.runner import RolloutRequest
from orchard_core.rollout.scheduler import run_many
from orchard_core.trajectory.types import Trajectory


class Kept(dict[str, Trajectory]):
    """A store in memory."""

    async def __call__(self, trajectory: Trajectory) -> None:
        assert trajectory.id not in self, "a rollout was handed over twice"
        self[trajectory.id] = trajectory


async def test_all_requests_are_run_and_never_too_many_at_once(place: Place) -> None:
    running, most = 0, 0

    async def model(request: ChatRequest) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1
        return SOLVE(request)

    kept = Kept()
    requests = [place.request(model, f"r{number}") for number in range(16)]
    report = await run_many(requests, place.runner, concurrency=8, on_done=kept)
    assert (report.finished, report.aborted, report.retried) == (16, 0, 0)
    assert {key: value.reward.verdict for key, value in kept.items()} == {
        f"r{n}": "success" for n in range(16)
    }
    assert 2 <= most <= 8


async def test_a_second_run_does_only_what_is_missing(place: Place) -> None:
    kept = Kept()
    first = [place.request(rollout_id=f"r{number}") for number in range(2)]
    await run_many(first, place.runner, concurrency=2, on_done=kept)
    more = [place.request(rollout_id=f"r{number}") for number in range(4)]
    report = await run_many(more, place.runner, concurrency=2, on_done=kept, is_done=kept.__contains__)
    assert (report.finished, report.skipped) == (2, 2)
    assert set(kept) == {"r0", "r1", "r2", "r3"}


async def test_cancelling_keeps_what_is_finished(place: Place) -> None:
    kept = Kept()
    storing = asyncio.Event()

    async def slow_store(trajectory: Trajectory) -> None:
        storing.set()
        await asyncio.sleep(0.2)
        await kept(trajectory)

    requests = [place.request(rollout_id=f"r{number}") for number in range(20)]
    running = asyncio.create_task(run_many(requests, place.runner, concurrency=1, on_done=slow_store))
    await asyncio.wait_for(storing.wait(), 30)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert set(kept) == {"r0"}


async def test_an_infrastructure_failure_is_tried_once_more(place: Place) -> None:
    calls = 0

    def model(request: ChatRequest) -> Any:
        nonlocal calls
        calls += 1
        if calls <= 4:
            raise EngineError("restarting")
        return SOLVE(request)

    kept = Kept()
    report = await run_many([place.request(model)], place.runner, concurrency=1, on_done=kept)
    assert (report.retried, report.aborted, kept["r1"].reward.verdict) == (1, 0, "success")


async def test_it_is_given_up_after_the_retries(place: Place) -> None:
    def model(request: ChatRequest) -> Any:
        raise EngineError("broken")

    kept = Kept()
    report = await run_many(
        [place.request(model)], place.runner, concurrency=1, on_done=kept, infrastructure_retries=0
    )
    assert (report.retried, report.aborted, kept["r1"].outcome.status) == (0, 1, "aborted")


async def test_the_agents_failure_is_never_tried_again(place: Place) -> None:
    kept = Kept()
    request = place.request(in_order([bash("echo wrong > answer"), bash(SUBMIT)]))
    report = await run_many([request], place.runner, concurrency=1, on_done=kept)
    assert (report.retried, kept["r1"].reward.verdict) == (0, "failure")


async def test_an_error_of_the_store_stops_the_run(place: Place) -> None:
    async def full(trajectory: Trajectory) -> None:
        raise UsageError("the disk is full")

    taken: list[int] = []

    def endless() -> Iterator[RolloutRequest]:
        for number in range(1000):
            taken.append(number)
            yield place.request(rollout_id=f"r{number}")

    with pytest.raises(UsageError, match="disk is full"):
        await run_many(endless(), place.runner, concurrency=2, on_done=full)
    assert len(taken) <= 4


async def test_equal_ids_are_refused(place: Place) -> None:
    with pytest.raises(UsageError, match="two rollout requests have the id 'r1'"):
        await run_many([place.request(), place.request()], place.runner, concurrency=1, on_done=Kept())
