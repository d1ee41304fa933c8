"""Finding harnesses by name and reading their options."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchard_core.domain.types import Task
from orchard_core.errors import UsageError
from orchard_core.harness.mini_swe_agent import MiniSweAgentHarness
from orchard_core.harness.protocol import HarnessLimits, ModelEndpoint
from orchard_core.harness.react import CONFIG, ReactHarness, ReactTool
from orchard_core.harness.registry import UnknownHarnessError, available_harnesses, load_harness
from orchard_core.harness.style import ChatStyle


def test_built_in_harnesses_are_found() -> None:
    assert {"react", "mini-swe-agent"} <= set(available_harnesses())
    assert isinstance(load_harness("react"), ReactHarness)
    assert load_harness("mini-swe-agent") == MiniSweAgentHarness()


def test_an_installed_package_can_bring_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_binding.py").write_text(
        "from orchard_core.harness.react import ReactHarness\n"
        "def make(options): return ReactHarness(finish=options['finish'])\n"
    )
    info = tmp_path / "my_binding-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-binding\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[orchard.harnesses]\nmine = my_binding:make\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "mine" in available_harnesses()
    assert load_harness("mine", {"finish": "text"}) == ReactHarness(finish="text")


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UnknownHarnessError, match="did you mean 'react'"):
        load_harness("raect")
    with pytest.raises(UnknownHarnessError, match=r"there are: .*mini-swe-agent"):
        load_harness("zzz")


def test_options_become_the_style_and_the_tools() -> None:
    tool = {"name": "look", "description": "Look", "parameters": {"type": "object"}, "command": ["ls", "-l"]}
    harness = load_harness("react", {"system": "Hi", "output_head": 10, "tools": [tool], "finish": "text"})
    expected = ReactTool("look", "Look", {"type": "object"}, ("ls", "-l"))
    assert harness == ReactHarness(ChatStyle("Hi", output_head=10), (expected,), finish="text")
    assert load_harness("mini-swe-agent", {"system": "Hi"}) == MiniSweAgentHarness(ChatStyle("Hi"))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("react", {"sytem": "x"}, "did you mean 'system'"),
        ("mini-swe-agent", {"tools": []}, "no option 'tools'"),
        ("react", {"output_head": "4"}, "must be of type int"),
        ("react", {"output_tail": 0}, "at least 1"),
        ("react", {"finish": "never"}, '"submit" or "text"'),
        ("react", {"tools": [{"name": "x"}]}, "needs name, description, parameters and command"),
        (
            "react",
            {"tools": [{"name": "bash", "description": "", "parameters": {}, "command": ["x"]}]},
            "same",
        ),
        ("react", {"bash": False}, "without any tool"),
        ("react", {"instruction": "no place"}, "must hold the place"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(
    name: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        load_harness(name, options)


def test_the_secret_is_in_the_environment_alone() -> None:
    endpoint = ModelEndpoint("http://127.0.0.1:1/v1", "the-secret", "m")
    launch = ReactHarness().launch(
        Task("t", "d", "go", payload={"gold": "answer"}), endpoint, HarnessLimits()
    )
    assert "the-secret" in launch.env.values()
    assert b"the-secret" not in launch.files[CONFIG]
    assert not any("the-secret" in part for part in launch.argv)
    assert not any(b"answer" in data for path, data in launch.files.items() if path == CONFIG)
