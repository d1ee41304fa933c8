"""Samples are the calls' tokens: each sampled one is trained once or counted as dropped."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectory_fakes import call_lists, make_call, make_trajectory

from orchard_core.trajectory import build_samples, build_tree, total_dropped


@given(call_lists(), st.none() | st.integers(1, 12))
def test_every_sampled_token_is_trained_once_or_dropped_with_a_reason(calls, max_length):
    report = build_samples(calls, max_length=max_length)
    sampled = sum(len(call.completion_ids) for call in calls)
    assert report.trained_tokens == sum(int(sample.mask.sum()) for sample in report.samples)
    assert report.trained_tokens + total_dropped([report]) == sampled
    trained = [
        (int(sample.calls[at]), at - len(calls[sample.calls[at]].prompt_ids))
        for sample in report.samples
        for at in np.flatnonzero(sample.mask)
    ]
    assert len(set(trained)) == len(trained)
    if max_length is None:
        usable = [call for call in calls if call.token_source != "none"]
        assert set(trained) == {(c.index, at) for c in usable for at in range(len(c.completion_ids))}


@given(call_lists(), st.none() | st.integers(1, 12))
def test_trained_positions_hold_exactly_the_call_that_sampled_them(calls, max_length):
    for sample in build_samples(calls, max_length=max_length).samples:
        for at in range(len(sample)):
            if sample.calls[at] < 0:
                assert not sample.mask[at]
                assert sample.logprobs[at] == 0
                continue
            call = calls[sample.calls[at]]
            offset = at - len(call.prompt_ids)
            assert 0 <= offset < len(call.completion_ids)
            assert sample.ids[at] == call.completion_ids[offset]
            assert sample.logprobs[at] == (0 if call.logprobs is None else call.logprobs[offset])


@given(call_lists())
def test_every_parent_is_a_token_prefix_and_none_longer_was_left_out(calls):
    tree = build_tree(calls)
    ends = [[*call.prompt_ids, *call.completion_ids] if len(call.completion_ids) else None for call in calls]
    for at, parent in enumerate(tree.parents):
        prompt = list(calls[at].prompt_ids)
        fitting = [len(end) for end in ends[:at] if end is not None and prompt[: len(end)] == end]
        chosen = ends[parent] if parent is not None else None
        assert (len(chosen) if chosen is not None else None) == max(fitting, default=None)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=12))
def test_a_chain_of_turns_is_one_sample(turns):
    calls, ids = [], [9]
    for index, (new, sampled) in enumerate(turns):
        ids += [5] * new
        completion = list(range(sampled))
        calls.append(make_call(index, ids, completion))
        ids = ids + completion
    report = build_samples(make_trajectory("t", calls))
    (sample,) = report.samples
    assert sample.ids.tolist() == ids
    assert sample.mask.sum() == sum(sampled for _, sampled in turns)
    assert (report.merges, report.branches, report.dropped) == (len(turns) - 1, 0, {})
    assert (sample.trajectory_id, sample.task_id) == ("t", "task")


def test_interleaved_threads_branch_and_train_the_shared_part_once():
    root = make_call(0, [1], [2, 3], version=4)
    left = make_call(1, [1, 2, 3, 8], [5], version=5)
    right = make_call(2, [1, 2, 3, 9], [6], version=6)
    more_left = make_call(3, [1, 2, 3, 8, 5, 1], [7], version=7)
    report = build_samples([root, left, right, more_left])
    first, second = report.samples
    assert first.ids.tolist() == [1, 2, 3, 9, 6]
    assert first.mask.tolist() == [False, True, True, False, True]
    assert second.ids.tolist() == [1, 2, 3, 8, 5, 1, 7]
    assert second.mask.tolist() == [False, False, False, False, True, False, True]
    assert second.calls.tolist() == [-1, 0, 0, -1, 1, -1, 3]
    assert (report.merges, report.branches) == (3, 1)
    assert (first.weight_version, second.weight_version) == (4, 5)


@given(call_lists(), st.randoms())
def test_the_order_in_which_calls_are_given_does_not_matter(calls, random):
    shuffled = list(calls)
    random.shuffle(shuffled)
    one, other = build_samples(calls), build_samples(shuffled)
    assert dataclasses.replace(one, samples=()) == dataclasses.replace(other, samples=())
    for left, right in zip(one.samples, other.samples, strict=True):
        assert left.ids.tolist() == right.ids.tolist()
        assert left.mask.tolist() == right.mask.tolist()
        assert left.calls.tolist() == right.calls.tolist()


def test_unusable_calls_are_dropped_with_their_reason():
    calls = [
        make_call(0, [1], [], usage=0),
        make_call(1, [], [], source="none", usage=12),
        make_call(2, [1], [2, 3, 4]),
    ]
    report = build_samples(calls, max_length=3)
    assert report.dropped == {"empty_completion": 0, "no_token_ids": 12, "too_long": 1}
    assert total_dropped([report, report]) == 26
    assert report.trained_tokens == 2


def test_a_sample_without_a_trained_token_left_is_not_built():
    report = build_samples([make_call(0, [1, 2, 3], [4])], max_length=3)
    assert (report.samples, report.dropped) == ((), {"too_long": 1})


@pytest.mark.parametrize("rendered", [False, True])
def test_unknown_behaviour_logprobs_are_flagged_not_invented(rendered):
    calls = [
        make_call(0, [1], [2]),
        make_call(1, [1, 2, 3], [4], source="rendered" if rendered else "engine"),
    ]
    (sample,) = build_samples(calls).samples
    assert sample.has_logprobs is not rendered
    assert sample.logprobs[3] == (0 if rendered else -2)


def test_trajectories_import_without_the_store_or_anything_heavy():
    code = (
        "import sys; sys.modules['deltalake'] = None\n"
        "import orchard_core.trajectory as t\n"
        "assert not {'torch', 'transformers', 'aiohttp', 'arro3.core'} & set(sys.modules)\n"
        "try: t.TrajectoryStore\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.startswith("MissingExtraError"), done.stderr
    assert "pip install 'orchard-core[store]'" in done.stdout
