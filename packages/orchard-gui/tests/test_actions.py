"""The action space: what is accepted, what is refused, where a point lands."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard_gui.actions import ACTIONS, ActionError, parse_action, to_pixels, tool_definitions

EXAMPLES: dict[str, dict[str, Any]] = {
    "click": {"point_2d": [10, 990]},
    "hover": {"point_2d": [0, 0]},
    "drag": {"start_point_2d": [1, 2], "end_point_2d": [3, 4]},
    "write": {"message": "hello"},
    "press_keys": {"keys": ["Control", "a"], "is_hotkey": True},
    "scroll": {"direction": "down"},
    "goto_url": {"url": "about:blank"},
    "go_back": {},
    "wait": {},
    "new_tab": {},
    "switch_tab": {"tab_index": 0},
    "close_tab": {},
    "done": {"response": "42"},
}


def test_there_are_thirteen_actions_and_each_is_a_tool() -> None:
    assert len(ACTIONS) == 13
    assert {tool["function"]["name"] for tool in tool_definitions()} == set(ACTIONS) == set(EXAMPLES)
    assert all("action" not in tool["function"]["parameters"]["properties"] for tool in tool_definitions())


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_of_each_action_is_accepted(name: str) -> None:
    assert parse_action(name, EXAMPLES[name]).model_dump()["action"] == name


def test_the_published_defaults_hold() -> None:
    assert parse_action("scroll", {"direction": "up"}).model_dump()["amount"] == 0.5
    assert parse_action("wait", {}).model_dump()["seconds"] == 3.0
    assert parse_action("drag", EXAMPLES["drag"]).model_dump()["steps"] == 10


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("tap", {}, "no action 'tap'"),
        ("click", {}, "point_2d"),
        ("click", {"point_2d": [1001, 0]}, "point_2d"),
        ("click", {"point_2d": [1, 2], "button": "side"}, "button"),
        ("click", {"point_2d": [1, 2], "colour": "red"}, "colour"),
        ("press_keys", {"keys": []}, "keys"),
        ("scroll", {"direction": "in"}, "direction"),
        ("switch_tab", {"tab_index": -1}, "tab_index"),
    ],
)
def test_a_wrong_call_is_explained(name: str, arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ActionError, match=complaint):
        parse_action(name, arguments)


@given(st.floats(0, 1000), st.floats(0, 1000), st.integers(1, 4000), st.integers(1, 4000))
def test_a_point_always_lands_inside_the_viewport(x: float, y: float, width: int, height: int) -> None:
    column, row = to_pixels((x, y), width, height)
    assert 0 <= column < width
    assert 0 <= row < height


def test_the_middle_is_the_middle() -> None:
    assert to_pixels((500, 500), 1280, 1000) == (640, 500)
