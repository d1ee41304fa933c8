"""What a run remembers: finished stages, durable rollouts, seeds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectory_fakes import make_trajectory

from orchard_core.domain import Task
from orchard_core.pipeline.seeds import derive_seed
from orchard_core.pipeline.stages.rl import task_order
from orchard_core.pipeline.state import RunState, RunStateError
from orchard_core.pipeline.writer import StoreWriter
from orchard_core.trajectory.store import TrajectoryStore


def test_a_finished_stage_is_known_to_the_next_process(tmp_path: Path) -> None:
    RunState(tmp_path / "run", "f").finish("sft", {"steps": 3})
    again = RunState(tmp_path / "run", "f")
    assert again.result("sft") == {"steps": 3}
    assert again.result("rl") is None


def test_a_folder_of_another_recipe_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    state = RunState(tmp_path, "one")
    state.finish("sft", {})
    before = state.path.read_bytes()
    with pytest.raises(RunStateError, match="different recipe"):
        RunState(tmp_path, "two")
    assert state.path.read_bytes() == before


@pytest.mark.parametrize("text", ["", "{", '"fingerprint"', "[]", "{}", '{"fingerprint": "f"}'])
def test_a_damaged_record_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(RunStateError, match=r"state\.json is damaged"):
        RunState(tmp_path, "f")


class SlowStore:
    """A store whose commits wait until they are let through."""

    def __init__(self, store: TrajectoryStore, fails: bool = False) -> None:
        self.inner = store
        self.fails = fails
        self.commits: list[list[str]] = []

    def append(self, trajectories: list[Any]) -> None:
        self.commits.append([t.id for t in trajectories])
        if self.fails:
            raise OSError("disk full")
        self.inner.append(trajectories)


async def test_what_arrives_during_a_commit_shares_the_next(tmp_path: Path) -> None:
    store = SlowStore(TrajectoryStore(tmp_path / "store"))
    async with StoreWriter(store) as writer:  # type: ignore[arg-type]
        await asyncio.gather(*(writer.add(make_trajectory(f"t{n}")) for n in range(20)))
        assert len(store.inner.query()) == 20
    assert len(store.commits) <= 2
    assert sorted(name for commit in store.commits for name in commit) == sorted(f"t{n}" for n in range(20))


async def test_leaving_commits_what_a_cancelled_caller_left(tmp_path: Path) -> None:
    store = TrajectoryStore(tmp_path / "store")
    async with StoreWriter(store) as writer:
        adding = asyncio.create_task(writer.add(make_trajectory("t")))
        await asyncio.sleep(0)
        adding.cancel()
        await asyncio.gather(adding, return_exceptions=True)
        assert adding.cancelled()
    assert [t.id for t in store.query()] == ["t"]


async def test_a_failed_commit_reaches_every_caller_and_the_next_may_succeed(tmp_path: Path) -> None:
    store = SlowStore(TrajectoryStore(tmp_path / "store"), fails=True)
    async with StoreWriter(store) as writer:  # type: ignore[arg-type]
        told = await asyncio.gather(
            *(writer.add(make_trajectory(f"t{n}")) for n in range(3)), return_exceptions=True
        )
        assert [str(error) for error in told] == ["disk full"] * 3
        store.fails = False
        await writer.add(make_trajectory("after"))
    assert [t.id for t in store.inner.query()] == ["after"]


@given(st.integers(), st.integers(1, 9), st.integers(0, 40))
def test_task_order_shows_every_task_once_before_any_again(seed: int, tasks: int, count: int) -> None:
    every = [Task(f"t{n}", "d", "") for n in range(tasks)]
    order = [task.id for task in task_order(every, seed, count)]
    assert len(order) == count
    for start in range(0, count, tasks):
        epoch = order[start : start + tasks]
        assert len(set(epoch)) == len(epoch)
    assert order == [task.id for task in task_order(every, seed, count)]


@given(st.integers(), st.lists(st.text(max_size=3), max_size=3), st.lists(st.text(max_size=3), max_size=3))
def test_seeds_differ_where_their_names_do(seed: int, one: list[str], other: list[str]) -> None:
    assert (derive_seed(seed, *one) == derive_seed(seed, *other)) == (one == other)


def test_seeds_are_the_same_in_every_process() -> None:
    assert derive_seed(0, "rl", 3) == derive_seed(0, "rl", 3)
    assert json.dumps(derive_seed(0, "rl", 3)).isdigit()
    assert derive_seed(0, "rl", 3) != derive_seed(1, "rl", 3)
