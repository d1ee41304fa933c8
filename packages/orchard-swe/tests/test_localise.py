"""Ochiai scores and the focus that is chosen from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard_swe.miner.localise import FOCUS_LINES, find_focus, ochiai

SPECTRUM = {
    "bad": {"a.py": [1, 2, 3], "b.py": [1]},
    "good": {"a.py": [1, 2], "b.py": [1]},
    "far": {"a.py": [1]},
}


def test_scores_are_ochiais() -> None:
    scores = ochiai(SPECTRUM, ["bad"], ["good", "far"])
    assert scores["a.py", 3] == 1.0
    assert scores["a.py", 2] == pytest.approx(0.5**0.5)
    assert scores["a.py", 1] == pytest.approx((1 / 3) ** 0.5)


def test_the_file_with_the_most_suspicious_line_is_the_focus() -> None:
    focus = find_focus(SPECTRUM, ["bad"], ["good", "far"], [])
    assert focus is not None
    assert (focus.file, focus.lines) == ("a.py", (1, 2, 3))


def test_equal_lines_are_ordered_by_their_distance_from_the_error() -> None:
    focus = find_focus({"bad": {"a.py": list(range(1, 41))}}, ["bad"], [], [("a.py", 30)])
    assert focus is not None
    assert 30 in focus.marked
    assert min(focus.lines) > 20


def test_a_test_that_runs_no_source_has_no_focus() -> None:
    assert find_focus({"bad": {}}, ["bad"], [], []) is None


@given(
    st.dictionaries(
        st.sampled_from("tuvwx"),
        st.dictionaries(
            st.sampled_from(["a.py", "b.py"]), st.lists(st.integers(1, 60), min_size=1, unique=True)
        ),
        min_size=1,
    )
)
def test_a_focus_is_bounded_and_its_lines_were_run_by_a_failing_test(
    spectrum: dict[str, dict[str, list[int]]],
) -> None:
    failing, *passing = sorted(spectrum)
    focus = find_focus(spectrum, [failing], passing, [])
    if focus is not None:
        assert len(focus.lines) <= FOCUS_LINES
        assert set(focus.marked) <= set(focus.lines) <= set(spectrum[failing][focus.file])
