"""Recipes: inheritance, overrides, and mistakes that are named in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchard_core.recipe import RecipeError, RlStage, load_recipe

DEMO = Path(__file__).resolve().parents[4] / "recipes" / "demo"
MINIMAL: dict[str, Any] = {
    "name": "small",
    "run_dir": "runs/small",
    "domain": {"name": "swe", "options": {"rows": 6}},
    "model": {"tiny": {"hidden": 32}},
    "engine": {"threads": 1},
    "harnesses": [{"name": "react", "weight": 2}],
    "limits": {"max_turns": 5},
    "sampling": {"temperature": 0.9},
    "stages": [
        {"name": "demos", "kind": "demonstrate", "tasks": 3},
        {"name": "sft", "kind": "sft", "source": "demos", "optimizer": {"lr": 0.01}},
        {"name": "rl", "kind": "rl", "init": "sft", "steps": 2, "group": {"kind": "balanced", "n": 2}},
        {"name": "after", "kind": "evaluate", "model": "rl"},
    ],
}


def write(folder: Path, data: Any, name: str = "recipe.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data, sort_keys=False))
    return path


def changed(**keys: Any) -> dict[str, Any]:
    return {**MINIMAL, **keys}


@pytest.mark.parametrize("path", sorted(DEMO.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_demos_recipes_are_right(path: Path) -> None:
    assert load_recipe(path).stages


def test_a_child_changes_keys_and_stages_by_name_and_drops_a_stage(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL, "base/parent.yaml")
    child = {
        "extends": "base/parent.yaml",
        "limits": {"timeout_s": 9},
        "stages": {"rl": {"steps": 7, "group": {"n": 3}}, "after": None},
    }
    recipe = load_recipe(write(tmp_path, child))
    assert (recipe.limits.max_turns, recipe.limits.timeout_s) == (5, 9)
    assert [stage.name for stage in recipe.stages] == ["demos", "sft", "rl"]
    rl = recipe.stages[2]
    assert isinstance(rl, RlStage)
    assert (rl.steps, rl.group.n, rl.group.kind) == (7, 3, "balanced")


def test_later_parents_win_over_earlier_ones(tmp_path: Path) -> None:
    write(tmp_path, MINIMAL, "a.yaml")
    write(tmp_path, {"seed": 3, "limits": {"max_turns": 8}}, "b.yaml")
    recipe = load_recipe(write(tmp_path, {"extends": ["a.yaml", "b.yaml"], "seed": 4}))
    assert (recipe.seed, recipe.limits.max_turns) == (4, 8)


def test_overrides_reach_keys_and_stages(tmp_path: Path) -> None:
    overrides = ["seed=5", "stages.rl.steps=9", "limits.timeout_s=2.5", "domain.options={rows: 3}"]
    recipe = load_recipe(write(tmp_path, MINIMAL), overrides)
    rl = recipe.stages[2]
    assert isinstance(rl, RlStage)
    assert (recipe.seed, rl.steps, recipe.limits.timeout_s) == (5, 9, 2.5)
    assert recipe.domain.options == {"rows": 3}


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (changed(sede=1), "unknown key 'sede'; did you mean 'seed'?"),
        (changed(limits={"max_turn": 3}), "unknown key 'limits.max_turn'; did you mean 'max_turns'?"),
        (changed(limits={"max_turns": "many"}), "'limits.max_turns'"),
        (changed(limits={"max_turns": 0}), "'limits.max_turns'"),
        (changed(model={}), "exactly one of `folder` and `tiny`"),
        ({k: v for k, v in MINIMAL.items() if k != "domain"}, "the key 'domain' is missing"),
        (changed(stages=[{"name": "x", "kind": "evaluate", "model": "rl"}]), "needs the model 'rl'"),
        (changed(stages=[{"name": "x", "kind": "evalute", "model": "base"}]), "evalute"),
        (changed(harnesses=[{"name": "react"}, {"name": "react"}]), "same key"),
        (changed(harnesses=[{"name": "react", "weight": 0}]), "no harness has a weight"),
        ("[1, 2]", "a recipe is a mapping"),
        ("a: [", "not valid YAML"),
        ({"extends": "recipe.yaml"}, "must not extend itself"),
        ({"extends": "nowhere.yaml"}, "there is no recipe"),
        ({"extends": 3}, "takes a path"),
    ],
)
def test_a_mistake_is_named_in_one_sentence(tmp_path: Path, data: Any, complaint: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(tmp_path, data))
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "override", ["seed", "=3", "stages.nothing.steps=2", "seed.x=1", "name=[", "name.x=2"]
)
def test_a_wrong_override_is_named(tmp_path: Path, override: str) -> None:
    with pytest.raises(RecipeError, match="override"):
        load_recipe(write(tmp_path, MINIMAL), [override])


def key_places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key of the minimal recipe that the schema knows, by its path."""
    if isinstance(data, dict):
        own = [(*path, key) for key in data]
        inner = [p for k, v in data.items() if k != "options" for p in key_places(v, (*path, k))]
        return own + inner
    if isinstance(data, list):
        return [place for index, item in enumerate(data) for place in key_places(item, (*path, index))]
    return []


def renamed(data: Any, path: tuple[Any, ...], new: str) -> Any:
    head, *rest = path
    if not rest:
        return {new if key == head else key: value for key, value in data.items()}
    if isinstance(data, list):
        return [renamed(item, tuple(rest), new) if i == head else item for i, item in enumerate(data)]
    return {k: renamed(v, tuple(rest), new) if k == head else v for k, v in data.items()}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    place=st.sampled_from(
        [p for p in key_places(MINIMAL) if len(str(p[-1])) > 3 and p[-1] not in ("kind", "tiny")]
    ),
    at=st.integers(0, 30),
)
def test_every_misspelt_key_names_the_key_that_was_meant(
    tmp_path: Path, place: tuple[Any, ...], at: int
) -> None:
    key = str(place[-1])
    at %= len(key)
    misspelt = key[: at + 1] + key[at] + key[at + 1 :]
    with pytest.raises(RecipeError) as caught:
        load_recipe(write(tmp_path, renamed(MINIMAL, place, misspelt)))
    message = str(caught.value)
    required_is_missing = f"'{key}' is missing" in message or f".{key}' is missing" in message
    assert required_is_missing or f"did you mean '{key}'?" in message


def test_recipes_are_read_without_torch() -> None:
    code = "import sys, orchard_core.recipe as r; r.load_recipe(sys.argv[1]); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(DEMO / "small.yaml")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
