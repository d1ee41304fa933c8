"""`mini-swe-agent`: the released package, unmodified, run from a cache that is mounted read-only.

It lives in a virtual environment of its own, so that neither its packages nor its settings leak into
the commands it runs. Options are written to its own configuration format; without any, its own
`mini.yaml` is used as it is.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import yaml

from orchard_core.domain.types import Task
from orchard_core.env.handle import ExecResult, Sandbox
from orchard_core.env.spec import Mount
from orchard_core.errors import UsageError
from orchard_core.harness.cache import cached_folder
from orchard_core.harness.interpreter import sandbox_python
from orchard_core.harness.options import STYLE_OPTIONS, reject_unknown, style_from
from orchard_core.harness.protocol import HarnessLaunch, HarnessLimits, ModelEndpoint
from orchard_core.harness.results import killed_from_inside, read_json
from orchard_core.harness.style import ChatStyle
from orchard_core.trajectory.types import Outcome

VERSION = "2.4.6"
MINIMUM_PYTHON = (3, 10)
FOLDER = "/tmp/.orchard-mini"
CONFIG, RESULT = f"{FOLDER}/orchard.yaml", f"{FOLDER}/traj.json"
_BUDGET = "budget_exceeded"
_START = """
import ctypes
import gc
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
gc.disable()
from minisweagent.agents import interactive
from minisweagent.models import litellm_model
from minisweagent.run.mini import app
gc.freeze()
gc.enable()
app()
"""
"""What its `mini` command does. First the process is made undumpable, or its commands could read the
session's secret from its environment under /proc. Importing some thousand modules makes garbage collection
a third of the start's processor time, so that is put off until they are loaded."""


@dataclass(frozen=True)
class MiniSweAgentHarness:
    """The binding. With a `style` the model sees its texts (the same as under `react`); without, the
    package's own prompts."""

    style: ChatStyle | None = None

    name = "mini-swe-agent"
    version = VERSION

    async def install(self) -> tuple[Mount, ...]:
        """Once per Python version: a few hundred megabytes from the package index, then offline."""
        python, version, mounts = sandbox_python(MINIMUM_PYTHON)
        folder = await asyncio.to_thread(_cached, python, version)
        return (*mounts, Mount(str(folder), str(folder)))

    def launch(self, task: Task, endpoint: ModelEndpoint, limits: HarnessLimits) -> HarnessLaunch:
        python, version, _ = sandbox_python(MINIMUM_PYTHON)
        interpreter = _cached(python, version) / "bin" / "python"
        config = self._config(task, limits)
        return HarnessLaunch(
            argv=(
                *(str(interpreter), "-I", "-c", _START, "-y", "--exit-immediately", "-l", "0"),
                *("-m", f"openai/{endpoint.model}", "-c", "mini.yaml", "-c", CONFIG, "-o", RESULT),
            ),
            env={
                "OPENAI_API_KEY": endpoint.api_key,
                "OPENAI_API_BASE": endpoint.base_url,
                "MSWEA_CONFIGURED": "true",
                "MSWEA_SILENT_STARTUP": "1",
                "MSWEA_GLOBAL_CONFIG_DIR": FOLDER,
                "MSWEA_COST_TRACKING": "ignore_errors",
                # Its client's own re-sends are marked as such and sample nothing twice; these are not.
                "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
                # Or it looks for its price list on the network.
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            },
            files={CONFIG: yaml.safe_dump(config, sort_keys=False).encode()},
        )

    def _config(self, task: Task, limits: HarnessLimits) -> dict[str, Any]:
        """What is laid over its mini.yaml."""
        agent: dict[str, Any] = {
            "step_limit": limits.max_turns,
            "wall_time_limit_seconds": max(1, int(limits.timeout_s)),
        }
        model: dict[str, Any] = {
            "model_kwargs": {"max_tokens": limits.max_tokens, "max_retries": 2, "timeout": limits.timeout_s}
        }
        if self.style is not None:
            agent |= _agent_templates(self.style)
            model |= _model_templates(self.style)
        environment = {"timeout": max(1, int(limits.command_timeout_s)), "env": {"OPENAI_API_KEY": ""}}
        # The task goes here rather than on the command line, which takes 128 KiB at most.
        return {"run": {"task": task.instruction}, "agent": agent, "model": model, "environment": environment}

    async def classify(self, launched: ExecResult, sandbox: Sandbox, limits: HarnessLimits) -> Outcome:
        """By `info.exit_status` of its trajectory file."""
        if launched.timed_out:
            return Outcome("truncated_time", "timeout", f"no end within {limits.timeout_s:g} s")
        if killed := killed_from_inside(launched):
            return killed
        code = launched.exit_code
        trajectory = await read_json(sandbox, RESULT)
        info = trajectory.get("info")
        status = str(info.get("exit_status", "")) if isinstance(info, dict) else ""
        match status:
            case "Submitted":
                return Outcome("completed", "submitted", exit_code=code)
            case "LimitsExceeded":
                return Outcome("truncated", "step_limit", exit_code=code)
            case "TimeExceeded":
                return Outcome("truncated_time", "timeout", exit_code=code)
            case "RepeatedFormatError":
                return Outcome("completed", "format_error", exit_code=code)
            case "":
                tail = (launched.stdout[-1000:] + launched.stderr[-1000:]).decode("utf-8", "replace")
                return Outcome("aborted", "harness_crash", tail, code)
        error = _last_error(trajectory)
        if status == "ContextWindowExceededError":
            return Outcome("truncated", "context_length_exceeded", error, code)
        if _BUDGET in error:
            return Outcome("truncated", _BUDGET, error, code)
        return Outcome("aborted", "model_error", f"{status}: {error}", code)


def _last_error(trajectory: Mapping[str, Any]) -> str:
    messages = trajectory.get("messages")
    last = messages[-1] if isinstance(messages, list) and messages else {}
    return str(last.get("content", ""))[:500] if isinstance(last, dict) else ""


def _literal(text: str) -> str:
    """A Jinja template that renders to exactly `text` (its string literals read JSON's escapes)."""
    return "{{ " + json.dumps(text, ensure_ascii=False) + " }}" if text else ""


def _around(text: str, place: str, expression: str) -> str:
    """`text` with each `place` filled by a Jinja expression and all else taken literally."""
    return expression.join(_literal(part) for part in text.split(place))


def _agent_templates(style: ChatStyle) -> dict[str, str]:
    return {
        "system_template": _literal(style.system),
        "instance_template": _around(style.instruction, "{instruction}", "{{ task }}"),
    }


def _model_templates(style: ChatStyle) -> dict[str, str]:
    head, tail = style.output_head, style.output_tail
    whole = head + tail
    output = (
        f"{{% if output.output | length <= {whole} %}}{{{{ output.output }}}}{{% else %}}"
        f"{{{{ output.output[:{head}] }}}}{{{{ '\\n' }}}}[{{{{ output.output | length - {whole} }}}} characters cut]"
        f"{{{{ '\\n' }}}}{{{{ output.output[-{tail}:] }}}}{{% endif %}}"
    )
    ending = (
        "{% if output.exception_info %}(timed out after {{ timeout }} s)"
        "{% elif output.returncode %}(exit {{ output.returncode }}){% endif %}"
    )
    error = f"{{% if has_tool_calls %}}{{{{ error }}}}{{% else %}}{_literal(style.no_tool_call)}{{% endif %}}"
    return {
        "observation_template": output + ending,
        "format_error_template": _around(style.format_error, "{error}", error),
    }


def _cached(python: str, version: str) -> Path:
    name = f"mini-swe-agent-{VERSION}-py{version}"
    return cached_folder(name, lambda folder: _install(folder, python))


def _install(folder: Path, python: str) -> None:
    """A virtual environment of the sandbox's own interpreter, with compiled bytecode."""
    uv = shutil.which("uv")
    if uv is None:
        raise UsageError("mini-swe-agent is fetched with uv, which is not installed; run: pip install uv")
    _run([uv, "venv", "--quiet", "--python", python, "--allow-existing", str(folder)])
    with as_file(files("orchard_core.harness") / "mini_swe_agent.txt") as pins:
        install = [
            uv,
            "pip",
            "install",
            "--quiet",
            "--compile-bytecode",
            "--python",
            str(folder / "bin" / "python"),
        ]
        # Copies, since hard links into another cache would change with it.
        _run([*install, "--link-mode", "copy", "--requirements", str(pins)])


def _run(argv: list[str]) -> None:
    # Not in the caller's folder: uv would apply the pins of a project that it finds there.
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=elsewhere)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise UsageError(
            f"mini-swe-agent {VERSION} could not be installed ({reason[0]}); is the package index up?"
        )


def mini_from_options(options: Mapping[str, Any]) -> MiniSweAgentHarness:
    """A binding from a recipe's options: none keep its own prompts, any give it a ChatStyle."""
    reject_unknown("mini-swe-agent", options, STYLE_OPTIONS)
    return MiniSweAgentHarness(style_from("mini-swe-agent", options) if options else None)
