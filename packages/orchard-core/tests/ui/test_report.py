"""The report page: complete, self-contained, and safe to open whatever a model wrote."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from trajectory_fakes import make_call, make_trajectory

from orchard_core.domain.types import Reward
from orchard_core.ui.report import show_trajectory, write_report

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
ALLOWED = {"p", "b", "div", "span", "pre"}


class Reader(HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "onerror"}]

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader


def spoken(text: str, **more: Any) -> Any:
    """A trajectory in which everything says `text`."""
    function = {"name": text, "arguments": text}
    call = make_call(
        0,
        [1],
        [2, 3],
        request={
            "messages": [{"role": "system", "content": text}, {"role": "user", "content": [{"t": text}]}]
        },
        response={"choices": [{"message": {"content": text, "tool_calls": [{"function": function}]}}]},
    )
    return make_trajectory("t", [call], result={text: text.encode()}, task_id=text, **more)


@given(st.text(max_size=30))
def test_what_a_model_wrote_is_shown_and_never_becomes_markup(text: str) -> None:
    reader = read(show_trajectory(spoken(text + HOSTILE)))
    assert reader.tags <= ALLOWED
    assert not reader.links
    assert HOSTILE in reader.text


def metrics(**details: Any) -> dict[str, Any]:
    return {
        "recipe": HOSTILE,
        "seed": 3,
        "seconds": 90.0,
        "stages": [{"name": "after-sft", "success": 0.25, "ci_low": 0.2, "ci_high": 0.3, "n": 150}],
        "comparisons": [
            {"name": "selected", "baseline": 0.5, "difference": 0.1, "ci_low": 0.05, "ci_high": 0.15}
        ],
        "details": {"after-sft": {"seconds": 61.0, "rollouts": 600, "sampled_tokens": 12345}, **details},
    }


def test_the_page_holds_figures_plots_and_costs_and_loads_nothing(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    curves = {"Reward": {"rl": [(1.0, 0.1), (2.0, 0.2)]}, "Empty": {"rl": []}}
    write_report(path, metrics(), curves, spoken("hello", reward=Reward.failure(reason="tests fail")))
    reader = read(path.read_text(encoding="utf-8"))
    for shown in ("25.0 %", "20.0 to 30.0", "150", "+10.0", "5.0 to 15.0", "61", "600", "12,345", "failure"):
        assert shown in reader.text
    assert len(reader.links) == 2
    assert all(link.startswith("data:image/png;base64,") for link in reader.links)
    assert "script" not in reader.tags


def test_a_run_without_measured_stages_still_has_a_page(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    empty = {**metrics(), "stages": [], "comparisons": [], "details": {}}
    write_report(path, empty, {}, None)
    assert "Cost of each stage" in path.read_text(encoding="utf-8")
