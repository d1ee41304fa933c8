"""The stages that a recipe may list. Packages run them by kind (entry point group "orchard.stages")."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from orchard_core.recipe.sections import OptimizerConfig, Section

Split = Literal["train", "held_out"]


class StageBase(Section):
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")


class ValidateStage(StageBase):
    """Checks a sample of tasks: the reference result passes, doing nothing fails."""

    kind: Literal["validate"]
    tasks: int = Field(20, ge=1)


class DemonstrateStage(StageBase):
    """A scripted teacher plays the harness."""

    kind: Literal["demonstrate"]
    tasks: int | None = Field(None, ge=1)
    per_task: int = Field(1, ge=1)
    teacher: dict[str, Any] = Field(default_factory=dict)


class PretrainStage(StageBase):
    """Next-token training of `init` on practice conversations that the domain makes up.

    The loss is the mean over the assistant's tokens plus `prompt_weight` times the mean over all others.
    """

    kind: Literal["pretrain"]
    init: str = "base"
    conversations: int = Field(ge=1)
    options: dict[str, Any] = Field(default_factory=dict)
    prompt_weight: float = Field(0.1, ge=0)
    batch_samples: int = Field(16, ge=1)
    optimizer: OptimizerConfig = OptimizerConfig()


class SftStage(StageBase):
    """Supervised fine-tuning of `init` on the trajectories of the stage `source`."""

    kind: Literal["sft"]
    init: str = "base"
    source: str
    epochs: int = Field(1, ge=1)
    batch_samples: int = Field(16, ge=1)
    optimizer: OptimizerConfig = OptimizerConfig()


class GroupConfig(Section):
    """Group sampling: `n` rollouts of each prompt train; balanced draws up to `max_samples` for them."""

    kind: Literal["uniform", "balanced"] = "balanced"
    n: int = Field(4, ge=1)
    max_samples: int = Field(8, ge=1)
    stride: int = Field(4, ge=1)
    p_min: float = Field(0.25, ge=0, le=1)
    p_max: float = Field(0.75, ge=0, le=1)


class RlStage(StageBase):
    """Group-relative policy gradient from `init`."""

    kind: Literal["rl"]
    init: str
    steps: int = Field(ge=1)
    tasks: int | None = Field(None, ge=1)
    prompts_per_step: int = Field(8, ge=1)
    max_draws: int = Field(16, ge=1)
    """Prompts drawn at most for one step, those of dropped groups included."""
    passes: int = Field(1, ge=1)
    group: GroupConfig = GroupConfig()
    clip_low: float = Field(0.2, ge=0)
    clip_high: float = Field(0.28, ge=0)
    entropy: float = Field(1e-4, ge=0)
    kl: float = Field(0.0, ge=0)
    optimizer: OptimizerConfig = OptimizerConfig(lr=1e-4, schedule="constant", betas=(0.9, 0.98))


class EvaluateStage(StageBase):
    """Success of a stage's model on a split, under one of the recipe's harnesses (default: its first)."""

    kind: Literal["evaluate"]
    model: str
    split: Split = "held_out"
    tasks: int | None = Field(None, ge=1)
    samples: int = Field(1, ge=1)
    harness: str | None = None


class ValueStage(StageBase):
    """A value model, trained on everything that the stages `sources` generated."""

    kind: Literal["value"]
    init: str
    sources: list[str] = Field(min_length=1)
    epochs: int = Field(2, ge=1)
    lr: float = Field(3e-4, gt=0)


class SelectStage(StageBase):
    """Best of the samples that the stage `source` drew for each task, by the value model `value`."""

    kind: Literal["select"]
    value: str
    source: str
    n: int = Field(4, ge=2)


class ReportStage(StageBase):
    """The page report.html; it shows a trajectory of the stage `example`."""

    kind: Literal["report"]
    example: str | None = None


Stage = Annotated[
    ValidateStage
    | DemonstrateStage
    | PretrainStage
    | SftStage
    | RlStage
    | EvaluateStage
    | ValueStage
    | SelectStage
    | ReportStage,
    Field(discriminator="kind"),
]
