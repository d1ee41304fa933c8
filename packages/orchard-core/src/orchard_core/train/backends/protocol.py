"""TrainerBackend: what turns weighted samples into better weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from orchard_core.train.batch import WeightedSample
from orchard_core.trajectory.types import Sample

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class TrainerBackend(Protocol):
    """One model in training. A batch's loss is the sum over its weighted tokens, so a backend may
    split a batch over micro-batches and devices as it likes."""

    @property
    def steps_done(self) -> int:
        """Optimiser steps taken since the model was loaded, over resumes."""
        ...

    def step(self, batch: Sequence[WeightedSample]) -> dict[str, float]:
        """One optimiser step; returns metrics (loss, lr, grad_norm, entropy, ...)."""
        ...

    def logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """Log-probability of every token given those before it, each of shape (T,); 0 at position 0."""
        ...

    def save_checkpoint(self, folder: Path, extra: Mapping[str, Any] | None = None) -> None:
        """Write all that a bit-exact resume needs, atomically; `extra` is JSON of the caller's."""
        ...

    def load_checkpoint(self, folder: Path) -> dict[str, Any]:
        """Resume from a folder of `save_checkpoint`; returns its `extra`."""
        ...

    def export_hf(self, folder: Path) -> Path:
        """Write the model as a Hugging Face folder, with the tokenizer it came with."""
        ...

    def state_dict(self) -> Mapping[str, Tensor]:
        """The weights by Hugging Face parameter name, for an engine to load; not copies."""
        ...
