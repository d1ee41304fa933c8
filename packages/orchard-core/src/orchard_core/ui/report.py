"""The report of a run: one self-contained HTML page that opens offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import orjson

from orchard_core.trajectory.types import ModelCall, Trajectory
from orchard_core.ui.plots import calibration_plot, curve_plot, success_plot

STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1f2933;max-width:960px;margin:2rem auto;padding:0 1rem}
h1,h2{font-weight:600} table{border-collapse:collapse;width:100%;margin:1rem 0}
td,th{padding:.35rem .6rem;border-bottom:1px solid #e2e8e0;text-align:right} td:first-child,th:first-child{text-align:left}
img{max-width:100%} pre{background:#f5f7f4;padding:.6rem .8rem;overflow-x:auto;font-size:13px;white-space:pre-wrap}
.turn{border-left:3px solid #2f7d4f;padding-left:.8rem;margin:1rem 0} .tool{border-color:#b7791f}
.muted{color:#667}.bad{color:#b03a2e}.good{color:#2f7d4f}
"""


def write_report(
    path: Path,
    metrics: Mapping[str, Any],
    curves: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    example: Trajectory | None,
) -> None:
    """Write the page.

    `metrics` is what metrics.json holds; `curves` maps a title to labelled (step, value) series;
    `example` is shown turn by turn.
    """
    parts = [
        f"<h1>{escape(str(metrics['recipe']))}</h1>",
        f"<p class='muted'>seed {metrics['seed']}, {metrics['seconds'] / 60:.1f} minutes</p>",
    ]
    if metrics["stages"]:
        parts += ["<h2>Success on held-out tasks</h2>", image(success_plot(metrics["stages"]))]
        parts += [stage_table(metrics["stages"]), comparison_table(metrics["comparisons"])]
    for title, series in curves.items():
        if any(len(points) > 1 for points in series.values()):
            parts.append(image(curve_plot(series, title)))
    for detail in metrics["details"].values():
        if detail.get("calibration"):
            parts += [
                "<h2>Calibration of the value model</h2>",
                image(calibration_plot(detail["calibration"])),
            ]
    parts += ["<h2>Cost of each stage</h2>", cost_table(metrics["details"])]
    if example is not None:
        parts += ["<h2>One trajectory, turn by turn</h2>", show_trajectory(example)]
    page = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(str(metrics['recipe']))}</title><style>{STYLE}</style><body>{''.join(parts)}</body></html>"
    path.write_text(page, encoding="utf-8")


def image(url: str) -> str:
    return f"<p><img src='{url}' alt=''></p>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; cells are escaped."""
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{cells}</tr>{body}</table>"


def interval(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f}"


def stage_table(stages: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [s["name"], f"{100 * s['success']:.1f} %", interval(s["ci_low"], s["ci_high"]), str(s["n"])]
        for s in stages
    ]
    return table(["stage", "success", "95 % interval", "tasks"], rows)


def comparison_table(comparisons: Sequence[Mapping[str, Any]]) -> str:
    if not comparisons:
        return ""
    rows = [
        [
            c["name"],
            f"{100 * c['baseline']:.1f} %",
            f"{100 * c['difference']:+.1f}",
            interval(c["ci_low"], c["ci_high"]),
        ]
        for c in comparisons
    ]
    return table(["paired comparison", "baseline", "difference (points)", "95 % interval"], rows)


def cost_table(details: Mapping[str, Mapping[str, Any]]) -> str:
    rows = []
    for name, detail in details.items():
        tokens = detail.get("sampled_tokens", detail.get("trained_tokens"))
        rows.append(
            [
                name,
                f"{detail['seconds']:.0f}",
                f"{detail['rollouts']:,}" if "rollouts" in detail else "",
                "" if tokens is None else f"{tokens:,}",
            ]
        )
    return table(["stage", "seconds", "rollouts", "tokens sampled or trained"], rows)


def show_trajectory(trajectory: Trajectory) -> str:
    """The prompt, then each call with what was answered to it."""
    reward = trajectory.reward
    tone = "good" if reward.verdict == "success" else "bad"
    parts = [
        f"<p>{escape(trajectory.task_id)} under {escape(trajectory.harness)}: "
        f"<b class='{tone}'>{escape(reward.verdict)}</b>, {escape(trajectory.outcome.cause)}, "
        f"{len(trajectory.calls)} calls</p>"
    ]
    seen = 0
    for call in trajectory.calls:
        messages = call.request["messages"]
        parts += [show_message(m) for m in messages[seen:] if m["role"] != "assistant"]
        parts.append(show_call(call))
        seen = len(messages)
    for name, data in trajectory.result.items():
        parts.append(f"<p>{escape(name)}</p><pre>{escape(data.decode('utf-8', 'replace'))}</pre>")
    return "".join(parts)


def show_message(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    text = content if isinstance(content, str) else orjson.dumps(content).decode()
    return f"<div class='turn tool'><span class='muted'>{escape(message['role'])}</span><pre>{escape(text)}</pre></div>"


def show_call(call: ModelCall) -> str:
    message = call.response["choices"][0]["message"]
    text = str(message.get("content") or "")
    for tool in message.get("tool_calls") or ():
        function = tool["function"]
        text += f"\n{function['name']}: {function['arguments']}"
    note = (
        f"{call.completion_ids.size} tokens, weights {call.weight_version}, ids from the {call.token_source}"
    )
    return f"<div class='turn'><span class='muted'>assistant · {escape(note)}</span><pre>{escape(text.strip())}</pre></div>"
