"""The torch backend: one process, full-parameter AdamW over packed rows."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from orchard_core.errors import UsageError
from orchard_core.train.backends.hf_folder import export, load_causal_lm
from orchard_core.train.backends.torch_config import TorchConfig, learning_rate
from orchard_core.train.batch import WeightedSample
from orchard_core.train.errors import CheckpointError, DivergedError
from orchard_core.train.folders import atomic_folder
from orchard_core.train.losses import LossStats, targets_of, weighted_loss
from orchard_core.train.packing import Row, rows_of
from orchard_core.trajectory.types import Sample

_TENSORS, _STATE = "checkpoint.safetensors", "state.json"
_FORMAT = 1


class TorchBackend:
    """Trains the model of a Hugging Face folder; implements `TrainerBackend`.

    Resumes bit-exactly on a CPU with the same number of threads.
    """

    def __init__(self, model_folder: Path, config: TorchConfig | None = None) -> None:
        self.config = config or TorchConfig()
        if self.config.threads is not None:
            torch.set_num_threads(self.config.threads)
        torch.manual_seed(self.config.seed)
        self.model_folder = model_folder
        self.device = torch.device(self.config.device)
        self.model = load_causal_lm(model_folder).to(self.device)
        self._parameters: dict[str, torch.nn.Parameter] = dict(self.model.named_parameters())
        self._optimiser = self._make_optimiser()
        self._steps = 0

    @property
    def steps_done(self) -> int:
        """Optimiser steps taken since the model was loaded, over resumes."""
        return self._steps

    def step(self, batch: Sequence[WeightedSample]) -> dict[str, float]:
        """One optimiser step on the batch's summed loss.

        Raises DivergedError, with the weights unchanged, when the gradient is not finite.
        """
        batch = [item for item in batch if item.used.any()]
        if not batch:
            raise UsageError("the batch has no weighted token, there is nothing to learn from")
        started = time.perf_counter()
        self.model.train()
        self._optimiser.zero_grad(set_to_none=True)
        stats = LossStats()
        rows = rows_of([item.sample.ids for item in batch], self.config.tokens_per_row)
        total = sum(len(item.sample) for item in batch)
        aux = sum(self._backward(row, batch, stats, row.bounds[-1] / total) for row in rows)
        norm = self._clip_gradients()
        if not np.isfinite(norm):
            self._optimiser.zero_grad(set_to_none=True)
            raise DivergedError(f"the gradient of step {self._steps} is not finite; lower the learning rate")
        rate = learning_rate(self.config, self._steps)
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        self._steps += 1
        metrics = stats.summary() | {"lr": rate, "grad_norm": norm, "rows": float(len(rows))}
        if self.config.router_aux_coef:
            metrics["router_aux"] = aux
        seconds = time.perf_counter() - started
        return metrics | {
            "sequence_tokens": float(total),
            "seconds": seconds,
            "tokens_per_s": total / seconds,
        }

    def logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """Log-probability of every token at the loss's temperature, each of shape (T,); 0 first."""
        results = [np.zeros(len(sample), dtype=np.float32) for sample in samples]
        self.model.eval()
        with torch.no_grad():
            for row in rows_of([sample.ids for sample in samples], self.config.tokens_per_row):
                self._row_logprobs(row, results)
        return results

    def save_checkpoint(self, folder: Path, extra: Mapping[str, Any] | None = None) -> None:
        """Write weights, optimiser, step and random state; the folder appears whole or not at all."""
        tensors = {f"model.{name}": tensor.detach() for name, tensor in self._parameters.items()}
        for name, parameter in self._parameters.items():
            for key, value in self._optimiser.state.get(parameter, {}).items():
                tensors[f"optimiser.{key}.{name}"] = torch.as_tensor(value)
        tensors["random.cpu"] = torch.get_rng_state()
        state = {"format": _FORMAT, "step": self._steps, "extra": dict(extra or {})}
        with atomic_folder(folder) as draft:
            save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, draft / _TENSORS)
            (draft / _STATE).write_text(json.dumps(state, indent=1))

    def load_checkpoint(self, folder: Path) -> dict[str, Any]:
        """Take over a checkpoint's state; returns what the saver gave as `extra`."""
        try:
            state = json.loads((folder / _STATE).read_text())
            tensors = load_file(folder / _TENSORS)
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{folder} is no checkpoint: {Path(error.filename or _TENSORS).name} is missing"
            ) from error
        shapes = {name: tuple(parameter.shape) for name, parameter in self._parameters.items()}
        saved = {
            name.removeprefix("model."): tuple(t.shape)
            for name, t in tensors.items()
            if name.startswith("model.")
        }
        if state.get("format") != _FORMAT or shapes != saved:
            raise CheckpointError(f"the checkpoint in {folder} belongs to another model or version")
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(tensors[f"model.{name}"])
        self._load_optimiser(tensors)
        torch.set_rng_state(tensors["random.cpu"])
        self._steps = int(state["step"])
        extra: dict[str, Any] = state["extra"]
        return extra

    def export_hf(self, folder: Path) -> Path:
        """Write weights, config and tokenizer as a Hugging Face folder, atomically."""
        return export(self.model, self.model_folder, folder)

    def state_dict(self) -> Mapping[str, Tensor]:
        """The weights by Hugging Face name, sharing memory with the model in training."""
        return {name: tensor.detach() for name, tensor in self.model.state_dict().items()}

    def _make_optimiser(self) -> torch.optim.AdamW:
        # Norms and biases are not decayed: pulling them to zero only changes the scale.
        matrices = [parameter for parameter in self._parameters.values() if parameter.ndim >= 2]
        vectors = [parameter for parameter in self._parameters.values() if parameter.ndim < 2]
        groups = [
            {"params": matrices, "weight_decay": self.config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
        return torch.optim.AdamW(groups, lr=self.config.lr, betas=self.config.betas)

    def _load_optimiser(self, tensors: Mapping[str, Tensor]) -> None:
        self._optimiser.state.clear()
        for name, parameter in self._parameters.items():
            suffix = f".{name}"
            for key, tensor in tensors.items():
                if key.startswith("optimiser.") and key.endswith(suffix):
                    field = key.removeprefix("optimiser.").removesuffix(suffix)
                    if "." not in field:
                        # Adam's step counter stays on the CPU.
                        device = torch.device("cpu") if field == "step" else self.device
                        self._optimiser.state[parameter][field] = tensor.to(device)

    def _forward(self, row: Row, keep: Tensor) -> Any:
        inputs = {k: v.to(self.device) if isinstance(v, Tensor) else v for k, v in row.model_inputs().items()}
        if self.config.router_aux_coef and self.model.training:
            inputs["output_router_logits"] = True
        # Logits of the trained positions alone: the vocabulary is wider than the model.
        return self.model(**inputs, logits_to_keep=keep)

    def _backward(self, row: Row, batch: Sequence[WeightedSample], stats: LossStats, share: float) -> float:
        targets = targets_of(row, batch, self.device)
        output = self._forward(row, targets.before)
        loss = weighted_loss(output.logits[0], targets, self.config.loss, stats)
        aux = 0.0
        if self.config.router_aux_coef:
            balance = output.aux_loss * share
            aux = float(balance.detach())
            loss = loss + self.config.router_aux_coef * balance
        loss.backward()  # type: ignore[no-untyped-call]
        return aux

    def _row_logprobs(self, row: Row, results: Sequence[NDArray[np.float32]]) -> None:
        keep = torch.arange(row.bounds[-1], device=self.device)
        logits = self._forward(row, keep).logits[0].float() / self.config.loss.temperature
        for start, stop, member in zip(row.bounds[:-1], row.bounds[1:], row.members, strict=True):
            scores = torch.log_softmax(logits[start : stop - 1], dim=-1)
            following = row.ids[0, start + 1 : stop, None].to(self.device)
            results[member][1:] = scores.gather(1, following)[:, 0].cpu().numpy()

    def _clip_gradients(self) -> float:
        limit = self.config.grad_clip if self.config.grad_clip > 0 else float("inf")
        return float(torch.nn.utils.clip_grad_norm_(list(self._parameters.values()), limit))
