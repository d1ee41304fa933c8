"""ValueModel: a causal language model that reads a trajectory and says how likely it succeeded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from orchard_core.train.backends.hf_folder import copy_companions, load_causal_lm
from orchard_core.train.folders import atomic_folder
from orchard_core.train.packing import Row, rows_of
from orchard_core.trajectory.types import Trajectory
from orchard_value.errors import ValueFolderError
from orchard_value.sequences import TokenSequence, token_sequence

Pooling = Literal["last", "turn_mean"]
"""Read the state at the last token, or the mean state over the last assistant turn."""

_HEAD, _SETTINGS = "value_head.safetensors", "value_config.json"


class ValueModel(nn.Module):
    """Backbone plus a linear head; `forward` gives success logits.

    Its folder is a Hugging Face folder of the causal language model (whose own head stays as it
    was) with `value_head.safetensors` and `value_config.json` beside it.
    """

    def __init__(self, folder: Path, pooling: Pooling = "last", max_tokens: int = 4096) -> None:
        super().__init__()
        self.source = folder
        self.pooling: Pooling = pooling
        self.max_tokens = max_tokens
        self.language_model = load_causal_lm(folder)
        # A zero head starts at probability 1/2 for everything, whatever the backbone's scale.
        self.head = nn.Linear(int(self.language_model.config.hidden_size), 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @classmethod
    def load(cls, folder: Path) -> ValueModel:
        """Read a folder that `save` wrote; raises ValueFolderError for any other."""
        try:
            settings = json.loads((folder / _SETTINGS).read_text())
            head = load_file(folder / _HEAD)
        except FileNotFoundError as error:
            raise ValueFolderError(
                f"{folder} holds no value model: {_HEAD} or {_SETTINGS} is missing"
            ) from error
        model = cls(folder, settings["pooling"], settings["max_tokens"])
        model.head.load_state_dict(head)
        return model

    def save(self, folder: Path) -> Path:
        """Write everything, atomically; returns the folder."""
        with atomic_folder(folder) as draft:
            self.language_model.save_pretrained(draft)
            copy_companions(self.source, draft)
            save_file(
                {k: v.detach().contiguous().cpu() for k, v in self.head.state_dict().items()}, draft / _HEAD
            )
            settings = {"pooling": self.pooling, "max_tokens": self.max_tokens}
            (draft / _SETTINGS).write_text(json.dumps(settings, indent=1))
        return folder

    def forward(self, row: Row, turn_starts: Sequence[int]) -> Tensor:
        """Success logits of a row's segments, shape (segments,).

        `turn_starts[i]` is where the last assistant turn of segment i begins, counted within it.
        """
        device = self.head.weight.device
        inputs: dict[str, Any] = row.model_inputs()
        inputs = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
        states = self.language_model.base_model(**inputs).last_hidden_state[0]
        pooled = []
        for start, stop, turn in zip(row.bounds[:-1], row.bounds[1:], turn_starts, strict=True):
            first = stop - 1 if self.pooling == "last" else min(start + turn, stop - 1)
            pooled.append(states[first:stop].mean(dim=0))
        logits: Tensor = self.head(torch.stack(pooled))[:, 0]
        return logits

    def logits(self, sequences: Sequence[TokenSequence], tokens_per_row: int = 8192) -> Tensor:
        """Success logits of sequences in their order, shape (N,)."""
        cut = [sequence.tail(self.max_tokens) for sequence in sequences]
        parts: list[Tensor] = []
        order: list[int] = []
        for row in rows_of([sequence.ids for sequence in cut], tokens_per_row):
            parts.append(self(row, [cut[member].turn_start for member in row.members]))
            order.extend(row.members)
        return torch.cat(parts)[torch.from_numpy(np.argsort(order))]

    def score(self, trajectories: Sequence[Trajectory], tokens_per_row: int = 8192) -> NDArray[np.float64]:
        """P(success) of each trajectory, shape (N,)."""
        if not trajectories:
            return np.zeros(0)
        was_training = self.training
        self.eval()
        with torch.no_grad():
            logits = self.logits([token_sequence(t) for t in trajectories], tokens_per_row)
            probabilities: NDArray[np.float64] = torch.sigmoid(logits.double()).cpu().numpy()
        self.train(was_training)
        return probabilities


def score(folder: Path, trajectories: Sequence[Trajectory]) -> NDArray[np.float64]:
    """P(success) by the value model of a folder, shape (N,)."""
    return ValueModel.load(folder).score(trajectories)
