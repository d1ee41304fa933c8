"""The report's pictures, as PNG data for an HTML page that needs nothing else."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

from orchard_core.errors import MissingExtraError

try:
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingExtraError("matplotlib", "ui") from error

INK, ACCENT, SECOND, PALE = "#1f2933", "#2f7d4f", "#b7791f", "#d9e2d8"


def png(figure: Figure) -> str:
    """A figure as a data URL."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def success_plot(stages: Sequence[Mapping[str, Any]]) -> str:
    """Success after each stage (share of tasks, 0..1) with 95 % intervals."""
    figure = Figure(figsize=(7.5, 3.4))
    axes = figure.subplots()
    values = [100 * stage["success"] for stage in stages]
    low = [100 * (stage["success"] - stage["ci_low"]) for stage in stages]
    high = [100 * (stage["ci_high"] - stage["success"]) for stage in stages]
    spots = range(len(stages))
    axes.bar(spots, values, color=PALE, edgecolor=ACCENT, width=0.6)
    axes.errorbar(spots, values, yerr=[low, high], fmt="o", color=ACCENT, capsize=5)
    for spot, value, up in zip(spots, values, high, strict=True):
        axes.annotate(f"{value:.1f}", (spot, value + up + 1.5), ha="center", color=INK)
    axes.set_xticks(list(spots), [stage["name"] for stage in stages], rotation=15, ha="right")
    axes.set_ylabel("held-out success (%)")
    axes.set_ylim(0, min(100, max([*values, 10]) * 1.35 + 5))
    return _finish(figure)


def curve_plot(series: Mapping[str, Sequence[tuple[float, float]]], title: str) -> str:
    """Lines over training steps; `series` maps a label to (step, value) pairs."""
    figure = Figure(figsize=(7.5, 2.8))
    axes = figure.subplots()
    for color, (label, points) in zip((ACCENT, SECOND, INK, "#805ad5"), series.items(), strict=False):
        axes.plot([x for x, _ in points], [y for _, y in points], label=label, color=color, lw=1.6)
    axes.set_xlabel("step")
    axes.set_title(title, fontsize=10, loc="left")
    axes.legend(fontsize=8, frameon=False)
    return _finish(figure)


def calibration_plot(bins: Sequence[Mapping[str, float]]) -> str:
    """Predicted against observed success; each bin has `mean_score`, `success_rate` and `count`."""
    figure = Figure(figsize=(3.6, 3.2))
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="#bbb", lw=1, ls="--")
    sizes = [20 + 2 * bucket["count"] ** 0.5 for bucket in bins]
    axes.scatter([b["mean_score"] for b in bins], [b["success_rate"] for b in bins], s=sizes, color=ACCENT)
    axes.set_xlabel("predicted success")
    axes.set_ylabel("observed success")
    return _finish(figure)


def _finish(figure: Figure) -> str:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    return png(figure)
