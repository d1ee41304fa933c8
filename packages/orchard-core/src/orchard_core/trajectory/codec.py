"""Trajectories as rows of two flat tables, and back without losing a bit.

Arrays are packed little-endian bytes (int32 ids, float32 log-probabilities), mappings are JSON text, files are
JSON with base64 values: any Parquet reader understands them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from orchard_core.domain.types import Reward
from orchard_core.trajectory.types import Lineage, ModelCall, Outcome, Trajectory

Kind = Literal["text", "bytes", "int32", "int64", "float64"]
Row = dict[str, Any]

# Columns that queries filter by come first: file statistics cover the leading columns.
TRAJECTORY_COLUMNS: dict[str, Kind] = {
    "id": "text",
    "run": "text",
    "stage": "text",
    "task_id": "text",
    "domain": "text",
    "harness": "text",
    "model": "text",
    "status": "text",
    "verdict": "text",
    "reward": "float64",
    "generation": "int32",
    "group_name": "text",
    "sample": "int32",
    "batch": "text",
    "cause": "text",
    "detail": "text",
    "exit_code": "int32",
    "reward_parts": "text",
    "reward_reason": "text",
    "recipe": "text",
    "seed": "int64",
    "parent": "text",
    "result": "text",
    "tags": "text",
    "timings": "text",
    "started_at": "float64",
    "finished_at": "float64",
    "call_count": "int32",
    "sampled_tokens": "int64",
}
CALL_COLUMNS: dict[str, Kind] = {
    "trajectory_id": "text",
    "batch": "text",
    "index": "int32",
    "id": "text",
    "model": "text",
    "weight_version": "int64",
    "token_source": "text",
    "prompt_mode": "text",
    "finish_reason": "text",
    "prompt_tokens": "int32",
    "completion_tokens": "int32",
    "started_at": "float64",
    "first_token_at": "float64",
    "finished_at": "float64",
    "request": "text",
    "response": "text",
    "prompt_ids": "bytes",
    "completion_ids": "bytes",
    "logprobs": "bytes",
}
NULLABLE = frozenset({"reward", "exit_code", "logprobs"})


def trajectory_row(trajectory: Trajectory, batch: str) -> Row:
    """A trajectory without its calls. `batch` names the write that its call rows belong to."""
    outcome, reward, lineage = trajectory.outcome, trajectory.reward, trajectory.lineage
    files = {name: base64.b64encode(data).decode() for name, data in trajectory.result.items()}
    row = {
        "id": trajectory.id,
        "run": lineage.run,
        "stage": lineage.stage,
        "task_id": trajectory.task_id,
        "domain": trajectory.domain,
        "harness": trajectory.harness,
        "model": trajectory.model,
        "status": outcome.status,
        "verdict": reward.verdict,
        "reward": reward.value,
        "generation": lineage.generation,
        "group_name": lineage.group,
        "sample": lineage.sample,
        "batch": batch,
        "cause": outcome.cause,
        "detail": outcome.detail,
        "exit_code": outcome.exit_code,
        "reward_parts": _dump(reward.parts),
        "reward_reason": reward.reason,
        "recipe": lineage.recipe,
        "seed": lineage.seed,
        "parent": lineage.parent,
        "result": _dump(files),
        "tags": _dump(trajectory.tags),
        "timings": _dump(trajectory.timings),
        "started_at": trajectory.started_at,
        "finished_at": trajectory.finished_at,
        "call_count": len(trajectory.calls),
        "sampled_tokens": sum(len(call.completion_ids) for call in trajectory.calls),
    }
    return _clean(row)


def call_rows(trajectory: Trajectory, batch: str) -> list[Row]:
    """One row a call."""
    return [_clean(_call_row(trajectory.id, call, batch)) for call in trajectory.calls]


def _call_row(trajectory_id: str, call: ModelCall, batch: str) -> Row:
    return {
        "trajectory_id": trajectory_id,
        "batch": batch,
        "index": call.index,
        "id": call.id,
        "model": call.model,
        "weight_version": call.weight_version,
        "token_source": call.token_source,
        "prompt_mode": call.prompt_mode,
        "finish_reason": call.finish_reason,
        "prompt_tokens": len(call.prompt_ids),
        "completion_tokens": len(call.completion_ids),
        "started_at": call.started_at,
        "first_token_at": call.first_token_at,
        "finished_at": call.finished_at,
        "request": _dump(call.request),
        "response": _dump(call.response),
        "prompt_ids": call.prompt_ids.astype("<i4").tobytes(),
        "completion_ids": call.completion_ids.astype("<i4").tobytes(),
        "logprobs": None if call.logprobs is None else call.logprobs.astype("<f4").tobytes(),
    }


def trajectory_from_rows(row: Row, calls: list[Row]) -> Trajectory:
    """The inverse of `trajectory_row` and `call_rows`; `calls` may come in any order."""
    ordered = sorted(calls, key=lambda call: int(call["index"]))
    return Trajectory(
        id=row["id"],
        task_id=row["task_id"],
        domain=row["domain"],
        harness=row["harness"],
        model=row["model"],
        calls=tuple(_call(call) for call in ordered),
        outcome=Outcome(row["status"], row["cause"], row["detail"], row["exit_code"]),
        reward=Reward(row["reward"], row["verdict"], _load(row["reward_parts"]), row["reward_reason"]),
        lineage=Lineage(
            run=row["run"],
            stage=row["stage"],
            recipe=row["recipe"],
            generation=row["generation"],
            group=row["group_name"],
            sample=row["sample"],
            seed=row["seed"],
            parent=row["parent"],
        ),
        result={name: base64.b64decode(data) for name, data in _load(row["result"]).items()},
        tags=_load(row["tags"]),
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        timings=_load(row["timings"]),
    )


def _call(row: Row) -> ModelCall:
    return ModelCall(
        id=row["id"],
        index=row["index"],
        request=_load(row["request"]),
        response=_load(row["response"]),
        prompt_ids=_ids(row["prompt_ids"]),
        completion_ids=_ids(row["completion_ids"]),
        logprobs=None
        if row["logprobs"] is None
        else np.frombuffer(row["logprobs"], "<f4").astype(np.float32),
        token_source=row["token_source"],
        prompt_mode=row["prompt_mode"],
        finish_reason=row["finish_reason"],
        model=row["model"],
        weight_version=row["weight_version"],
        started_at=row["started_at"],
        first_token_at=row["first_token_at"],
        finished_at=row["finished_at"],
    )


def _ids(packed: bytes) -> NDArray[np.int32]:
    return np.frombuffer(packed, "<i4").astype(np.int32)


def _dump(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"))


def _load(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)  # What only Python's JSON writes: NaN, lone surrogates.


def _clean(row: Row) -> Row:
    """Text columns must be valid UTF-8; output of programs may hold undecodable bytes as lone surrogates."""
    return {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in row.items()
    }
