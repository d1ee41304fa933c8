"""The wording of a chat-and-shell episode, shared by harnesses so that a model can move between them."""

from __future__ import annotations

from dataclasses import dataclass

from orchard_core.errors import UsageError

SUBMIT_MARK = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""A command whose output's first line is this, with exit status 0, ends the episode."""

DEFAULT_SYSTEM = (
    "You solve tasks on a computer with the given tools. When you are done, run the command "
    f"`echo {SUBMIT_MARK}` alone."
)

BASH_TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Execute a bash command",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The bash command to execute"}},
            "required": ["command"],
        },
    },
}
"""The one tool of mini-swe-agent 2.4.6, which `react` offers in the same words."""


@dataclass(frozen=True, slots=True)
class ChatStyle:
    """The texts that the model sees besides its task and the outputs of its commands.

    `instruction` holds the place {instruction}; `format_error` holds the place {error}. An output
    longer than `output_head` + `output_tail` characters is cut between the two.
    """

    system: str = DEFAULT_SYSTEM
    instruction: str = "{instruction}"
    format_error: str = "{error} Call a tool."
    no_tool_call: str = (
        "No tool calls found in the response. Every response MUST include at least one tool call."
    )
    output_head: int = 4000
    output_tail: int = 4000

    def __post_init__(self) -> None:
        if "{instruction}" not in self.instruction:
            raise UsageError("the style's instruction must hold the place {instruction}")
        if "{error}" not in self.format_error:
            raise UsageError("the style's format_error must hold the place {error}")
        if not (0 <= self.output_head <= 1 << 19 and 1 <= self.output_tail <= 1 << 19):
            raise UsageError("output_head and output_tail must be at most 524288, and the tail at least 1")

    @property
    def reminder(self) -> str:
        """The user message after a reply without a tool call."""
        return self.format_error.replace("{error}", self.no_tool_call)
