"""The recipe: one typed, strict description of a run."""

from __future__ import annotations

from pydantic import Field, model_validator

from orchard_core.recipe.sections import (
    DomainConfig,
    EngineConfig,
    HarnessConfig,
    LimitsConfig,
    ModelConfig,
    ProviderConfig,
    SamplingConfig,
    Section,
)
from orchard_core.recipe.stages import (
    EvaluateStage,
    PretrainStage,
    RlStage,
    SelectStage,
    SftStage,
    Stage,
    ValueStage,
)

BASE = "base"
"""The name of the model that no stage has trained yet."""


class Recipe(Section):
    """Everything that a run computes follows from this and from the versions installed."""

    name: str
    seed: int = 0
    run_dir: str
    domain: DomainConfig
    model: ModelConfig
    engine: EngineConfig = EngineConfig()
    provider: ProviderConfig = ProviderConfig()
    harnesses: list[HarnessConfig] = Field(min_length=1)
    limits: LimitsConfig = LimitsConfig()
    sampling: SamplingConfig = SamplingConfig()
    stages: list[Stage] = Field(min_length=1)

    @model_validator(mode="after")
    def _stages_fit(self) -> Recipe:
        """Every stage names only what an earlier stage leaves."""
        labels = [harness.label for harness in self.harnesses]
        if len(set(labels)) < len(labels):
            raise ValueError("two harnesses have the same key")
        if not any(harness.weight > 0 for harness in self.harnesses):
            raise ValueError("no harness has a weight above 0")
        seen: dict[str, str] = {}
        for stage in self.stages:
            if stage.name in seen or stage.name == BASE:
                raise ValueError(f"the stage name {stage.name!r} is taken")
            for what, name, kinds in _needs(stage):
                if name == BASE and "model" in what:
                    continue
                if seen.get(name) not in kinds:
                    raise ValueError(
                        f"stage {stage.name!r} needs the {what} {name!r}, which no earlier "
                        f"{' or '.join(sorted(kinds))} stage leaves"
                    )
            if isinstance(stage, EvaluateStage) and stage.harness not in {None, *labels}:
                raise ValueError(f"stage {stage.name!r} names the unknown harness {stage.harness!r}")
            seen[stage.name] = stage.kind
        return self


TRAINERS = frozenset({"pretrain", "sft", "rl"})
ROLLOUTS = frozenset({"demonstrate", "rl", "evaluate"})


def _needs(stage: Stage) -> list[tuple[str, str, frozenset[str]]]:
    """(what, name, kinds of stages that leave it) of everything a stage reads."""
    if isinstance(stage, SftStage):
        return [("model", stage.init, TRAINERS), ("trajectories", stage.source, ROLLOUTS)]
    if isinstance(stage, RlStage | PretrainStage):
        return [("model", stage.init, TRAINERS)]
    if isinstance(stage, EvaluateStage):
        return [("model", stage.model, TRAINERS)]
    if isinstance(stage, ValueStage):
        sources = [("trajectories", source, ROLLOUTS) for source in stage.sources]
        return [("model", stage.init, TRAINERS), *sources]
    if isinstance(stage, SelectStage):
        return [
            ("value stage", stage.value, frozenset({"value"})),
            ("trajectories", stage.source, frozenset({"evaluate"})),
        ]
    return []
