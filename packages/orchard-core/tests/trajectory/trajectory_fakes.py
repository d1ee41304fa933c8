"""Hypothesis strategies for calls and trajectories."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from orchard_core.domain.types import Reward
from orchard_core.trajectory import Lineage, ModelCall, Outcome, Trajectory


def make_call(index, prompt, completion, logprobs=True, source="engine", version=1, usage=None, **more):
    """A call with given ids; its log-probabilities tell calls apart."""
    known = source == "engine" and logprobs
    facts = {
        "id": f"call-{index}",
        "request": {"messages": [{"role": "user", "content": "q"}]},
        "response": {"usage": {"completion_tokens": len(completion) if usage is None else usage}},
        "token_source": source,
        "prompt_mode": "rendered",
        "finish_reason": "stop",
        "model": "m",
        "started_at": 100.0 + index,
        "first_token_at": 100.1 + index,
        "finished_at": 100.2 + index,
    }
    return ModelCall(
        index=index,
        prompt_ids=np.array(prompt, dtype=np.int32),
        completion_ids=np.array(completion, dtype=np.int32),
        logprobs=np.float32([-(index + 1) - at / 16 for at in range(len(completion))]) if known else None,
        weight_version=version,
        **{**facts, **more},
    )


def make_trajectory(id="t1", calls=(), run="r", stage="s", **more):
    facts = {
        "task_id": "task",
        "domain": "d",
        "harness": "h",
        "model": "m",
        "outcome": Outcome("completed", "submitted"),
        "reward": Reward.success(1.0, tests=1.0),
        "lineage": Lineage(run=run, stage=stage),
    }
    return Trajectory(id=id, calls=tuple(calls), **{**facts, **more})


@st.composite
def call_lists(draw, max_calls=9):
    """Calls as a proxy records them: each continues an earlier one, or starts anew; few distinct ids, so that
    chance prefixes occur too."""
    token = st.integers(1, 3)
    calls = []
    for index in range(draw(st.integers(0, max_calls))):
        completion = draw(st.lists(token, max_size=4))
        source = draw(st.sampled_from(["engine", "engine", "engine", "rendered", "none"]))
        if calls and draw(st.booleans()):
            parent = draw(st.sampled_from(calls))
            prompt = [*parent.prompt_ids, *parent.completion_ids, *draw(st.lists(token, max_size=3))]
        else:
            prompt = draw(st.lists(token, max_size=5))
        logprobs = draw(st.booleans())
        version = draw(st.integers(0, 5))
        calls.append(make_call(index, prompt, completion, logprobs, source, version))
    return calls


_text = st.text(max_size=12)
_finite = st.floats(allow_nan=False, allow_infinity=False)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | _finite | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=6,
)
_rewards = st.one_of(
    st.builds(Reward.none, _text),
    st.builds(
        lambda v, p, r: Reward(v, "failure", p, r),
        _finite,
        st.dictionaries(_text, _finite, max_size=2),
        _text,
    ),
)


@st.composite
def trajectories(draw, id="t1"):
    """Whole trajectories with every field filled."""
    calls = []
    for call in draw(call_lists(max_calls=4)):
        more = {"request": draw(st.dictionaries(_text, _json, max_size=2)), "started_at": draw(_finite)}
        calls.append(
            make_call(
                call.index,
                call.prompt_ids,
                call.completion_ids,
                call.logprobs is not None,
                call.token_source,
                call.weight_version,
                **more,
            )
        )
    small = st.integers(-(2**31), 2**31 - 1)
    return make_trajectory(
        id,
        calls,
        task_id=draw(_text),
        outcome=Outcome(
            draw(st.sampled_from(["completed", "truncated", "truncated_time", "aborted"])),
            draw(_text),
            draw(_text),
            draw(st.none() | small),
        ),
        reward=draw(_rewards),
        lineage=Lineage(
            run=draw(_text),
            stage=draw(_text),
            recipe=draw(_text),
            generation=draw(st.integers(0, 9)),
            group=draw(_text),
            sample=draw(small),
            seed=draw(st.integers(-(2**63), 2**63 - 1)),
            parent=draw(_text),
        ),
        result=draw(st.dictionaries(_text, st.binary(max_size=20), max_size=2)),
        tags=draw(st.dictionaries(_text, _text, max_size=2)),
        timings=draw(st.dictionaries(_text, _finite, max_size=2)),
        started_at=draw(_finite),
        finished_at=draw(_finite),
    )


def two_turns(id="t1", **more):
    return make_trajectory(id, [make_call(0, [1], [2, 3]), make_call(1, [1, 2, 3, 4], [5])], **more)
