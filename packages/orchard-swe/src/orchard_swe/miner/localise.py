"""Spectrum-based fault localisation (Ochiai; Abreu, Zoeteweij and van Gemund, 2007)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

FOCUS_LINES = 14
MARKED_LINES = 3
Spectrum = Mapping[str, Mapping[str, Sequence[int]]]
"""test -> file -> the lines that it ran."""


@dataclass(frozen=True, slots=True)
class Focus:
    """The most suspicious file, its most suspicious lines in order, and the top three of these."""

    file: str
    lines: tuple[int, ...]
    marked: tuple[int, ...]


def ochiai(
    spectrum: Spectrum, failing: Sequence[str], passing: Sequence[str]
) -> dict[tuple[str, int], float]:
    """failed(l) / sqrt(total_failed * (failed(l) + passed(l))) for each line that a failing test ran."""
    failed = _counts(spectrum, failing)
    passed = _counts(spectrum, passing)
    return {place: n / sqrt(len(failing) * (n + passed[place])) for place, n in failed.items()}


def _counts(spectrum: Spectrum, tests: Sequence[str]) -> Counter[tuple[str, int]]:
    return Counter(
        (file, line) for test in tests for file, lines in spectrum.get(test, {}).items() for line in lines
    )


def find_focus(
    spectrum: Spectrum, failing: Sequence[str], passing: Sequence[str], trace: Sequence[tuple[str, int]]
) -> Focus | None:
    """The focus of an issue, from what a solver could measure on the faulty program alone.

    Equal scores are ordered by their distance from the place where the first failing test's error
    passed through the file (`trace`, innermost last), then by line.
    """
    scores = ochiai(spectrum, failing, passing)
    if not scores:
        return None
    deepest = {file: line for file, line in trace}
    best: dict[str, tuple[float, bool]] = {}
    for (file, _), score in scores.items():
        best[file] = max(best.get(file, (0.0, False)), (score, file in deepest))
    file = max(sorted(best), key=lambda name: best[name])
    ranked = sorted(
        (line for name, line in scores if name == file),
        key=lambda line: (-scores[file, line], abs(line - deepest.get(file, line)), line),
    )
    chosen = ranked[:FOCUS_LINES]
    return Focus(file, tuple(sorted(chosen)), tuple(sorted(chosen[:MARKED_LINES])))
