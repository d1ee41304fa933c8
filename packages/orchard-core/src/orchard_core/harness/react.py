"""`react`: Orchard's own small tool-calling loop, up in milliseconds, for domains with custom tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

from orchard_core.domain.types import Task
from orchard_core.env.handle import ExecResult, Sandbox
from orchard_core.env.spec import Mount
from orchard_core.errors import UsageError
from orchard_core.harness import react_agent
from orchard_core.harness.interpreter import sandbox_python
from orchard_core.harness.options import STYLE_OPTIONS, reject_unknown, style_from
from orchard_core.harness.protocol import HarnessLaunch, HarnessLimits, ModelEndpoint
from orchard_core.harness.results import killed_from_inside, read_json
from orchard_core.harness.style import BASH_TOOL, ChatStyle
from orchard_core.trajectory.types import Outcome

FOLDER = "/tmp/.orchard-react"
SCRIPT, CONFIG, RESULT = f"{FOLDER}/agent.py", f"{FOLDER}/config.json", f"{FOLDER}/result.json"
COMMAND_ENV = {
    "PAGER": "cat",
    "MANPAGER": "cat",
    "LESS": "-R",
    "PIP_PROGRESS_BAR": "off",
    "TQDM_DISABLE": "1",
}
MAX_FORMAT_ERRORS = 3


@dataclass(frozen=True, slots=True)
class ReactTool:
    """A custom tool: `command` runs in the sandbox with the arguments as JSON on its stdin;
    stdout and stderr together are the observation. `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    command: tuple[str, ...]

    def function(self) -> dict[str, Any]:
        """The tool in OpenAI form."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
            },
        }


@dataclass(frozen=True)
class ReactHarness:
    """The binding. `bash` offers the built-in shell tool; with `finish="text"` a reply without a
    tool call ends the episode as its answer (otherwise it is a format error); `python` overrides
    the interpreter's path in the sandbox (for images other than "host")."""

    style: ChatStyle = field(default_factory=ChatStyle)
    tools: tuple[ReactTool, ...] = ()
    bash: bool = True
    finish: Literal["submit", "text"] = "submit"
    python: str | None = None

    name = "react"
    version = "1"

    def __post_init__(self) -> None:
        names = [tool.name for tool in self.tools] + ["bash"] * self.bash
        if len(set(names)) != len(names):
            raise UsageError(f"two tools of react have the same name: {', '.join(sorted(names))}")
        for tool in self.tools:
            if not tool.command:
                raise UsageError(f"tool {tool.name!r} of react has no command")
        if self.finish == "submit" and not names:
            raise UsageError('react without any tool can only finish by text; set finish: "text"')

    async def install(self) -> tuple[Mount, ...]:
        """Nothing to fetch; the interpreter may need a mount."""
        return () if self.python else sandbox_python((3, 9))[2]

    def launch(self, task: Task, endpoint: ModelEndpoint, limits: HarnessLimits) -> HarnessLaunch:
        """The script and its config go into the sandbox; the secret goes by the environment only."""
        config = {
            "base_url": endpoint.base_url,
            "model": endpoint.model,
            "system": self.style.system,
            "instruction": self.style.instruction.replace("{instruction}", task.instruction),
            "format_error": self.style.format_error,
            "reminder": self.style.reminder,
            "output_head": self.style.output_head,
            "output_tail": self.style.output_tail,
            "tools": self._tools(),
            "finish": self.finish,
            "env": COMMAND_ENV,
            "max_turns": limits.max_turns,
            "max_tokens": limits.max_tokens,
            "max_format_errors": MAX_FORMAT_ERRORS,
            "timeout_s": limits.timeout_s,
            "command_timeout_s": limits.command_timeout_s,
        }
        python = self.python or sandbox_python((3, 9))[0]
        return HarnessLaunch(
            argv=(python, "-I", "-S", SCRIPT, CONFIG, RESULT),
            env={react_agent.KEY_VARIABLE: endpoint.api_key},
            files={SCRIPT: _script(), CONFIG: json.dumps(config).encode()},
        )

    def _tools(self) -> list[tuple[dict[str, Any], list[str] | None]]:
        own: list[tuple[dict[str, Any], list[str] | None]] = [(BASH_TOOL, None)] if self.bash else []
        return own + [(tool.function(), list(tool.command)) for tool in self.tools]

    async def classify(self, launched: ExecResult, sandbox: Sandbox, limits: HarnessLimits) -> Outcome:
        """The exit code decides; the result file adds detail where there is more to say."""
        if launched.timed_out:
            return Outcome("truncated_time", "timeout", f"no end within {limits.timeout_s:g} s")
        code = launched.exit_code
        if code == 0 and self.finish == "submit":
            return Outcome("completed", "submitted", exit_code=0)
        if killed := killed_from_inside(launched):
            return killed
        result = await read_json(sandbox, RESULT)
        detail = str(result.get("detail", ""))
        codes = react_agent.EXIT_CODES
        if code == 0:
            return Outcome("completed", str(result.get("exit_status", "submitted")), detail, 0)
        if code == codes["limits"]:
            return Outcome("truncated", detail or "limits", exit_code=code)
        if code == codes["time"]:
            return Outcome("truncated_time", "timeout", exit_code=code)
        if code == codes["format_error"]:
            return Outcome("completed", "format_error", detail, code)
        if code == codes["model_error"]:
            return Outcome("aborted", "model_error", detail, code)
        return Outcome("aborted", "harness_crash", launched.stderr[-2000:].decode("utf-8", "replace"), code)


def _script() -> bytes:
    return (files("orchard_core.harness") / "react_agent.py").read_bytes()


def react_from_options(options: Mapping[str, Any]) -> ReactHarness:
    """A ReactHarness from a recipe's options. Raises UsageError for what it can't be."""
    own = ("tools", "bash", "finish", "python")
    reject_unknown("react", options, (*STYLE_OPTIONS, *own))
    style = style_from("react", {key: value for key, value in options.items() if key in STYLE_OPTIONS})
    finish = options.get("finish", "submit")
    if finish not in ("submit", "text"):
        raise UsageError('option "finish" of harness \'react\' must be "submit" or "text"')
    tools = tuple(_tool(entry) for entry in options.get("tools", ()))
    return ReactHarness(style, tools, bool(options.get("bash", True)), finish, options.get("python"))


def _tool(entry: Any) -> ReactTool:
    try:
        command = tuple(str(part) for part in entry["command"])
        return ReactTool(str(entry["name"]), str(entry["description"]), dict(entry["parameters"]), command)
    except (KeyError, TypeError, ValueError):
        raise UsageError("a tool of react needs name, description, parameters and command (a list)") from None
