"""The store keeps trajectories bit for bit, once each, whoever writes."""

from __future__ import annotations

import dataclasses
import multiprocessing
import tempfile
from pathlib import Path

import deltalake
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectory_fakes import make_call, make_trajectory, trajectories, two_turns
from trajectory_writers import write_many, write_to_a_full_disk

from orchard_core.domain.types import Reward
from orchard_core.trajectory import StoreError, TrajectoryStore, build_samples
from orchard_core.trajectory.codec import call_rows, trajectory_from_rows, trajectory_row


def assert_same(left, right):
    """Equal in every field, arrays bit for bit."""
    strip = {"prompt_ids": None, "completion_ids": None, "logprobs": None}
    assert dataclasses.replace(left, calls=()) == dataclasses.replace(right, calls=())
    assert len(left.calls) == len(right.calls)
    for one, other in zip(left.calls, right.calls, strict=True):
        assert dataclasses.replace(one, **strip) == dataclasses.replace(other, **strip)
        for name in strip:
            assert_same_array(getattr(one, name), getattr(other, name))


def assert_same_array(one, other):
    if one is None or other is None:
        assert one is other
        return
    assert one.dtype == other.dtype
    assert one.tobytes() == other.tobytes()


@given(trajectories())
def test_rows_keep_every_field(trajectory):
    rows = call_rows(trajectory, "b")
    assert_same(trajectory_from_rows(trajectory_row(trajectory, "b"), rows[::-1]), trajectory)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True).flatmap(
        lambda ids: st.tuples(*(trajectories(id=one) for one in ids))
    )
)
def test_samples_rebuilt_from_the_store_equal_those_built_live(batch):
    with tempfile.TemporaryDirectory() as folder:
        store = TrajectoryStore(folder)
        assert store.append(batch) == len(batch)
        stored = {one.id: one for one in TrajectoryStore(folder).query()}
    for live in batch:
        assert_same(stored[live.id], live)
        one, other = build_samples(live), build_samples(stored[live.id])
        assert dataclasses.replace(one, samples=()) == dataclasses.replace(other, samples=())
        for left, right in zip(one.samples, other.samples, strict=True):
            for name in ("ids", "mask", "logprobs", "calls"):
                assert_same_array(getattr(left, name), getattr(right, name))
            assert (left.has_logprobs, left.weight_version) == (right.has_logprobs, right.weight_version)


def test_queries_filter_and_text_is_never_sql(tmp_path):
    store = TrajectoryStore(tmp_path / "s")
    odd = "x' or '1'='1"
    store.append([two_turns("a", started_at=2.0), two_turns("b", started_at=1.0, task_id=odd)])
    store.append([two_turns(odd, run="other", stage="z")])
    assert [one.id for one in store.query(run="r")] == ["b", "a"]
    assert [one.id for one in store.query(task_id=odd)] == ["b"]
    assert [one.id for one in store.query(ids=[odd, "nobody"])] == [odd]
    assert store.query(run=odd) == []
    assert store.query(ids=[]) == []
    assert [one.id for one in store.query(run="r", stage="s", ids=["a", odd])] == ["a"]
    assert store.ids("r", "s") == {"a", "b"}
    assert store.ids("other") == {odd}
    assert store.ids() == {"a", "b", odd}


def test_an_id_is_stored_once(tmp_path):
    store = TrajectoryStore(tmp_path)
    first = two_turns("a")
    assert store.append([first, dataclasses.replace(first, task_id="later in the batch")]) == 1
    assert store.append([dataclasses.replace(first, task_id="again"), two_turns("b")]) == 1
    assert TrajectoryStore(tmp_path).append([first]) == 0
    stored = store.query()
    assert [one.id for one in stored] == ["a", "b"]
    assert_same(stored[0], first)
    assert store.append([]) == 0


def test_concurrent_writers_lose_and_double_nothing(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(3)
    writers = [spawn.Process(target=write_many, args=(str(tmp_path), at, barrier)) for at in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    stored = TrajectoryStore(tmp_path).query()
    expected = {f"shared-{n}" for n in range(20)} | {f"{w}-{n}" for w in range(3) for n in range(20)}
    assert sorted(one.id for one in stored) == sorted(expected)
    assert all(len(one.calls) == 2 for one in stored)


def test_an_interrupted_write_leaves_nothing_to_read_and_can_be_repeated(tmp_path, monkeypatch):
    store = TrajectoryStore(tmp_path)
    write = store._write

    def crash(table, columns, rows, transactions):
        if transactions:
            raise StoreError("power cut")
        write(table, columns, rows, transactions)

    monkeypatch.setattr(store, "_write", crash)
    with pytest.raises(StoreError):
        store.append([two_turns("a")])
    again = TrajectoryStore(tmp_path)
    assert again.query() == []
    again.append([two_turns("a")])
    assert_same(again.query()[0], two_turns("a"))


def test_compaction_changes_no_content(tmp_path):
    store, reader = TrajectoryStore(tmp_path), TrajectoryStore(tmp_path)
    for number in range(12):
        store.append([two_turns(f"t{number:02}")])
    before = reader.query()
    store.compact()
    assert len(deltalake.DeltaTable(str(tmp_path / "calls")).file_uris()) == 1
    after = reader.query()
    assert len(after) == 12
    for one, other in zip(before, after, strict=True):
        assert_same(one, other)
    assert store.append([two_turns("t03")]) == 0


def test_many_single_appends_leave_few_files(tmp_path):
    store = TrajectoryStore(tmp_path)
    for number in range(70):
        store.append([two_turns(f"t{number:02}")])
    assert len(deltalake.DeltaTable(str(tmp_path / "trajectories")).file_uris()) < 10
    assert [one.id for one in TrajectoryStore(tmp_path).query(ids=["t69", "t03"])] == ["t03", "t69"]
    assert len(store.ids("r", "s")) == 70


def test_other_readers_see_typed_columns_and_plain_bytes(tmp_path):
    TrajectoryStore(tmp_path).append([two_turns("a", reward=Reward.none("no grader"))])
    table = deltalake.DeltaTable(str(tmp_path / "calls"))
    found = (
        deltalake.QueryBuilder()
        .register("calls", table)
        .register("trajectories", deltalake.DeltaTable(str(tmp_path / "trajectories")))
        .execute(
            "select t.id, t.reward, t.sampled_tokens, c.completion_ids, c.completion_tokens from trajectories t "
            "join calls c on c.trajectory_id = t.id and c.batch = t.batch where c.completion_tokens > 1"
        )
        .read_all()
    )
    assert found["id"].to_pylist() == ["a"]
    assert found["reward"].to_pylist() == [None]
    assert found["sampled_tokens"].to_pylist() == [3]
    assert np.frombuffer(found["completion_ids"].to_pylist()[0], "<i4").tolist() == [2, 3]


def test_output_that_is_no_valid_text_is_stored(tmp_path):
    store = TrajectoryStore(tmp_path)
    call = make_call(
        0, [1], [2], request={"messages": [{"content": "\udcff"}], "big": 2**70, "nan": float("nan")}
    )
    store.append([two_turns("a", run="\udcff"), make_trajectory("b", [call])])
    assert store.ids("?") == {"a"}
    assert store.query(ids=["b"])[0].calls[0].request["messages"] == [{"content": "\udcff"}]


def test_missing_calls_are_never_passed_over(tmp_path):
    store = TrajectoryStore(tmp_path)
    store.append([two_turns("a")])
    deltalake.DeltaTable(str(tmp_path / "calls")).delete("index = 1")
    with pytest.raises(StoreError, match="should have 2 calls and has 1"):
        store.query()


def test_a_path_that_cannot_be_a_folder_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"trajectory store at .*file.* can't be opened; check"):
        TrajectoryStore(tmp_path / "file" / "store")


def test_a_damaged_store_is_one_clear_error(tmp_path):
    store = TrajectoryStore(tmp_path)
    store.append([two_turns("a")])
    for part in (tmp_path / "calls").glob("*.parquet"):
        part.unlink()
    with pytest.raises(StoreError, match="can't be read"):
        store.query()
    with pytest.raises(StoreError, match="can't be"):
        store.append([two_turns("b", lineage=dataclasses.replace(two_turns().lineage, seed=2**64))])


def test_a_write_that_the_disk_refuses_is_one_clear_error_and_the_store_stays_whole(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.Queue()
    writer = spawn.Process(target=write_to_a_full_disk, args=(str(tmp_path), answers))
    writer.start()
    assert "can't be written" in answers.get(timeout=20)
    assert answers.get(timeout=20) == 1
    writer.join(60)
    assert [one.id for one in TrajectoryStore(Path(tmp_path)).query()] == ["b"]
