"""Claw-Eval's task.yaml, typed: every field is accounted for, an unknown one is an error."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchard_core.errors import UsageError


class ClawTaskError(UsageError):
    """A task.yaml can't be read or is not what the benchmark defines."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Prompt(_Part):
    text: str
    language: str = "en"
    attachments: list[str] = Field(default_factory=list)


class Tool(_Part):
    name: str
    description: str = ""
    input_schema: dict[str, Any] = Field(default_factory=dict)


class ToolEndpoint(_Part):
    tool_name: str
    url: str
    method: str = "POST"


class Service(_Part):
    """A server of the benchmark; started by `command`, ready when `health_check` answers."""

    name: str
    command: str
    port: int
    health_check: str
    health_check_method: str = "GET"
    ready_timeout: float = 10
    reset_endpoint: str | None = None
    env: dict[str, str] = Field(default_factory=dict)


class Environment(_Part):
    timeout_seconds: int = 300
    max_turns: int = 20
    fixtures: list[str] = Field(default_factory=list)


class Check(BaseModel):
    """One of several kinds; its parameters depend on the kind and are kept as they are."""

    model_config = ConfigDict(extra="allow", frozen=True)
    type: Literal[
        "llm_judge", "keywords_present", "tool_called", "tool_not_called", "min_length", "categories_present"
    ]


class ScoringComponent(_Part):
    name: str
    weight: float
    check: Check


class SafetyCheck(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    type: str
    description: str = ""


class ExpectedAction(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    service: str = ""
    action_key: str = ""
    required: bool = True


class UserAgent(_Part):
    enabled: bool = False
    persona: str = ""
    max_rounds: int = 0


class ClawTask(_Part):
    """One task. The benchmark's Python grader, not these fields, is the authority on success."""

    task_id: str
    task_name: str
    prompt: Prompt
    version: str = ""
    category: str = ""
    difficulty: str = ""
    tags: list[str] = Field(default_factory=list)
    tools: list[Tool] = Field(default_factory=list)
    tool_endpoints: list[ToolEndpoint] = Field(default_factory=list)
    services: list[Service] = Field(default_factory=list)
    environment: Environment = Environment()
    scoring_components: list[ScoringComponent] = Field(default_factory=list)
    safety_checks: list[SafetyCheck] = Field(default_factory=list)
    expected_actions: list[ExpectedAction] = Field(default_factory=list)
    judge_rubric: str = ""
    reference_solution: str = ""
    primary_dimensions: list[str] = Field(default_factory=list)
    user_agent: UserAgent = UserAgent()
    sandbox_files: list[Any] = Field(default_factory=list)
    sandbox_grader_files: list[Any] = Field(default_factory=list)
    env_snapshot_files: list[Any] = Field(default_factory=list)
    env_snapshot_commands: list[Any] = Field(default_factory=list)
    local_grader_files: list[Any] = Field(default_factory=list)


def load_claw_task(path: Path) -> ClawTask:
    """Read a task.yaml. Raises ClawTaskError that names the field and, for a slip, the nearest known one."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ClawTaskError(f"the task {path} can't be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ClawTaskError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    try:
        return ClawTask.model_validate(data)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        hint = ""
        if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
            near = get_close_matches(where, sorted(ClawTask.model_fields), 1, cutoff=0.0)
            hint = f"; did you mean {near[0]!r}?"
        raise ClawTaskError(f"{path}: {where}: {problem['msg']}{hint}") from None
