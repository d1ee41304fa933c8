"""The action space of a web agent: 13 actions, coordinates on a 0 to 1000 grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from orchard_core.errors import UsageError

GRID = 1000
Coordinate = Annotated[float, Field(ge=0, le=GRID)]
Point = tuple[Coordinate, Coordinate]
"""(x, y) on the grid: (0, 0) is the viewport's top left corner, (1000, 1000) its bottom right one."""


class ActionError(UsageError):
    """A tool call is not one of the actions; the message says what is wrong."""


class _Action(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Click(_Action):
    action: Literal["click"] = "click"
    point_2d: Point
    clicks: int = Field(1, ge=1, le=3)
    button: Literal["left", "right", "middle"] = "left"


class Hover(_Action):
    action: Literal["hover"] = "hover"
    point_2d: Point


class Drag(_Action):
    action: Literal["drag"] = "drag"
    start_point_2d: Point
    end_point_2d: Point
    steps: int = Field(10, ge=1)


class Write(_Action):
    """Types into the focused field, which is cleared first."""

    action: Literal["write"] = "write"
    message: str


class PressKeys(_Action):
    """`is_hotkey` holds all keys down together; otherwise they are pressed one after the other."""

    action: Literal["press_keys"] = "press_keys"
    keys: list[str] = Field(min_length=1)
    is_hotkey: bool = False
    presses: int = Field(1, ge=1)


class Scroll(_Action):
    """`amount` is a share of the viewport."""

    action: Literal["scroll"] = "scroll"
    direction: Literal["up", "down", "left", "right"]
    amount: float = Field(0.5, gt=0, le=1)
    point_2d: Point | None = None


class GotoUrl(_Action):
    action: Literal["goto_url"] = "goto_url"
    url: str = Field(min_length=1)


class GoBack(_Action):
    action: Literal["go_back"] = "go_back"


class Wait(_Action):
    action: Literal["wait"] = "wait"
    seconds: float = Field(3.0, gt=0, le=60)


class NewTab(_Action):
    action: Literal["new_tab"] = "new_tab"


class SwitchTab(_Action):
    action: Literal["switch_tab"] = "switch_tab"
    tab_index: int = Field(ge=0)


class CloseTab(_Action):
    action: Literal["close_tab"] = "close_tab"


class Done(_Action):
    """Ends the episode with the answer to the task."""

    action: Literal["done"] = "done"
    response: str


Action = Annotated[
    Click
    | Hover
    | Drag
    | Write
    | PressKeys
    | Scroll
    | GotoUrl
    | GoBack
    | Wait
    | NewTab
    | SwitchTab
    | CloseTab
    | Done,
    Field(discriminator="action"),
]
ACTIONS: dict[str, type[_Action]] = {
    str(model.model_fields["action"].default): model for model in get_args(get_args(Action)[0])
}
_ADAPTER: TypeAdapter[Any] = TypeAdapter(Action)


def parse_action(name: str, arguments: Mapping[str, Any]) -> _Action:
    """The action of a tool call. Raises ActionError with one sentence that a model can act on."""
    if name not in ACTIONS:
        raise ActionError(f"there is no action {name!r}; the actions are {', '.join(ACTIONS)}")
    try:
        parsed: _Action = _ADAPTER.validate_python({**arguments, "action": name})
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"][1:])
        raise ActionError(f"{name}: {where}: {problem['msg']}") from None
    return parsed


def tool_definitions() -> list[dict[str, Any]]:
    """The actions as function tools in OpenAI form."""
    tools = []
    for name, model in ACTIONS.items():
        schema = model.model_json_schema()
        schema["properties"].pop("action")
        schema.pop("title", None)
        description = (model.__doc__ or name.replace("_", " ")).strip()
        tools.append(
            {
                "type": "function",
                "function": {"name": name, "description": description, "parameters": schema},
            }
        )
    return tools


def to_pixels(point: tuple[float, float], width: int, height: int) -> tuple[int, int]:
    """A grid point as a pixel of a viewport of `width` x `height`; always inside it."""
    x, y = point
    return min(width - 1, int(x * width / GRID)), min(height - 1, int(y * height / GRID))
