"""What a value model reads, and which splits are honest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard_core.errors import UsageError
from orchard_core.trajectory.types import Trajectory
from orchard_value.errors import LeakageError
from orchard_value.sequences import check_no_leakage, labels, split_by_origin, token_sequence, usable

MakeTrajectory = Callable[..., Trajectory]


def test_the_longest_call_is_read_with_its_completion(make_trajectory: MakeTrajectory) -> None:
    trajectory = make_trajectory(1, True)
    short, long = trajectory.calls
    for calls in ((short, long), (replace(long, index=0), replace(short, index=1))):
        sequence = token_sequence(replace(trajectory, calls=calls))
        assert sequence.ids.tolist() == [*long.prompt_ids.tolist(), *long.completion_ids.tolist()]
        assert sequence.turn_start == len(long.prompt_ids)


def test_a_long_sequence_keeps_its_end(make_trajectory: MakeTrajectory) -> None:
    whole = token_sequence(make_trajectory(1, True))
    cut = whole.tail(8)
    assert cut.ids.tolist() == whole.ids[-8:].tolist()
    assert cut.ids[cut.turn_start :].tolist() == whole.ids[whole.turn_start :].tolist()
    assert whole.tail(3).turn_start == 0


def test_infrastructure_failures_are_not_read(make_trajectory: MakeTrajectory) -> None:
    kept = usable([make_trajectory(1, True), make_trajectory(2, None), make_trajectory(3, False)])
    assert [t.id for t in kept] == ["t1", "t3"]
    assert labels(kept).tolist() == [1.0, 0.0]
    with pytest.raises(UsageError, match="no recorded tokens"):
        token_sequence(replace(make_trajectory(1, True), calls=()))


def test_a_shared_task_or_package_is_leakage(make_trajectory: MakeTrajectory) -> None:
    train = [make_trajectory(1, True, "a", "attrs"), make_trajectory(2, True, "b")]
    check_no_leakage(train, [make_trajectory(3, True, "c", "click"), make_trajectory(4, True, "d")])
    with pytest.raises(LeakageError, match="'b'"):
        check_no_leakage(train, [make_trajectory(3, True, "b", "click")])
    with pytest.raises(LeakageError, match=r"package.*'attrs'"):
        check_no_leakage(train, [make_trajectory(3, True, "c", "attrs")])


@given(
    origins=st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from(["", "p", "q", "r"])), min_size=1, max_size=30
    ),
    share=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_a_split_never_leaks(
    make_trajectory: MakeTrajectory, origins: list[tuple[int, str]], share: float, seed: int
) -> None:
    everything = [make_trajectory(i, True, f"{p}-task-{t}", p) for i, (t, p) in enumerate(origins)]
    train, validation = split_by_origin(everything, share, seed)
    check_no_leakage(train, validation)
    assert train
    assert sorted(t.id for t in train + validation) == sorted(t.id for t in everything)
    assert split_by_origin(everything, share, seed) == (train, validation)


def test_the_validation_share_is_about_what_was_asked(make_trajectory: MakeTrajectory) -> None:
    everything = [make_trajectory(i, True) for i in range(40)]
    _, validation = split_by_origin(everything, 0.25, 0)
    assert len(validation) == 10
    assert np.unique([t.task_id for t in validation]).size == 10
