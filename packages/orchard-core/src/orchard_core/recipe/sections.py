"""The sections of a recipe: what to run, on what, with which limits."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values are checked strictly enough to catch slips."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DomainConfig(Section):
    name: str
    options: dict[str, Any] = Field(default_factory=dict)
    """Handed to the domain's `tasks`."""


class TinyModel(Section):
    """A small Mixture-of-Experts model in the Qwen3-MoE architecture, made for the run."""

    vocab_size: int = Field(1536, ge=300)
    hidden: int = Field(192, ge=8)
    layers: int = Field(4, ge=1)
    heads: int = Field(6, ge=1)
    kv_heads: int = Field(2, ge=1)
    head_dim: int = Field(32, ge=2)
    experts: int = Field(8, ge=1)
    experts_per_token: int = Field(2, ge=1)
    moe_intermediate: int = Field(192, ge=8)


class ModelConfig(Section):
    """Exactly one of a model folder and a tiny model."""

    folder: str | None = None
    tiny: TinyModel | None = None

    @model_validator(mode="after")
    def _one(self) -> ModelConfig:
        if (self.folder is None) == (self.tiny is None):
            raise ValueError("give exactly one of `folder` and `tiny`")
        return self


class EngineConfig(Section):
    """The in-process engine. `threads` while generating, `train_threads` while training."""

    kind: Literal["torch"] = "torch"
    max_batch: int = Field(16, ge=1)
    max_context: int = Field(2048, ge=64)
    threads: int = Field(1, ge=1)
    train_threads: int = Field(2, ge=1)


class ProviderConfig(Section):
    """Where sandboxes come from, and how many rollouts run side by side."""

    kind: str = "bubblewrap"
    options: dict[str, Any] = Field(default_factory=dict)
    concurrency: int = Field(8, ge=1)


class HarnessConfig(Section):
    """A harness under a key; `weight` is its share of the training rollouts."""

    name: str
    key: str = ""
    weight: float = Field(1.0, ge=0)
    options: dict[str, Any] = Field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.key or self.name


class LimitsConfig(Section):
    """Caps of one episode; times in seconds."""

    max_turns: int = Field(50, ge=1)
    timeout_s: float = Field(1500.0, gt=0)
    command_timeout_s: float = Field(60.0, gt=0)


class SamplingConfig(Section):
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    max_tokens: int = Field(512, ge=1)
    """New tokens of one call."""


class OptimizerConfig(Section):
    """AdamW; `total_steps` 0 means as many as the stage takes."""

    lr: float = Field(1e-3, gt=0)
    min_lr: float = Field(0.0, ge=0)
    schedule: Literal["constant", "cosine"] = "cosine"
    warmup: int = Field(0, ge=0)
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = Field(0.1, ge=0)
    grad_clip: float = Field(1.0, gt=0)
