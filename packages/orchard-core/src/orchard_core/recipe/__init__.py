"""Recipes: the typed, strict description of a run; importable without torch."""

from orchard_core.recipe.errors import RecipeError
from orchard_core.recipe.loading import load_recipe
from orchard_core.recipe.recipe import BASE, Recipe
from orchard_core.recipe.sections import (
    DomainConfig,
    EngineConfig,
    HarnessConfig,
    LimitsConfig,
    ModelConfig,
    OptimizerConfig,
    ProviderConfig,
    SamplingConfig,
    TinyModel,
)
from orchard_core.recipe.stages import (
    DemonstrateStage,
    EvaluateStage,
    GroupConfig,
    PretrainStage,
    ReportStage,
    RlStage,
    SelectStage,
    SftStage,
    Stage,
    ValidateStage,
    ValueStage,
)

__all__ = [
    "BASE",
    "DemonstrateStage",
    "DomainConfig",
    "EngineConfig",
    "EvaluateStage",
    "GroupConfig",
    "HarnessConfig",
    "LimitsConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PretrainStage",
    "ProviderConfig",
    "Recipe",
    "RecipeError",
    "ReportStage",
    "RlStage",
    "SamplingConfig",
    "SelectStage",
    "SftStage",
    "Stage",
    "TinyModel",
    "ValidateStage",
    "ValueStage",
    "load_recipe",
]
