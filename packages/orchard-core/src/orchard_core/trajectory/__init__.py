"""Recorded rollouts: calls, their tree, token-exact samples, and the store that outlives the run.

`TrajectoryStore` needs the extra `orchard-core[store]` and is loaded when first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchard_core.trajectory.errors import StoreError
from orchard_core.trajectory.samples import build_samples
from orchard_core.trajectory.tree import CallTree, build_tree
from orchard_core.trajectory.types import (
    Lineage,
    ModelCall,
    Outcome,
    PromptMode,
    Sample,
    SampleReport,
    Status,
    TokenSource,
    Trajectory,
    total_dropped,
)

if TYPE_CHECKING:
    from orchard_core.trajectory.store import TrajectoryStore

__all__ = [
    "CallTree",
    "Lineage",
    "ModelCall",
    "Outcome",
    "PromptMode",
    "Sample",
    "SampleReport",
    "Status",
    "StoreError",
    "TokenSource",
    "Trajectory",
    "TrajectoryStore",
    "build_samples",
    "build_tree",
    "total_dropped",
]


def __getattr__(name: str) -> Any:
    if name == "TrajectoryStore":
        from orchard_core.trajectory.store import TrajectoryStore

        return TrajectoryStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
