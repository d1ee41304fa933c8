"""Faults are single substitutions on one line, and reverting one restores the source."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchard_swe.mutation import apply_edit, candidate_edits, find_faults
from orchard_swe.mutation.edits import edit_at, occurrence_at, substitute

LINES = {
    "comparison": ("    return a < b", "    return a <= b"),
    "membership": ("    return a in b", "    return a not in b"),
    "identity": ("    return a is not b", "    return a is b"),
    "arithmetic": ("    return a + b", "    return a - b"),
    "augmented": ("    a += b", "    a -= b"),
    "boolean": ("    return a and b", "    return a or b"),
    "not dropped": ("    return not a", "    return a"),
    "not added": ("    if a: b = 1", "    if not a: b = 1"),
    "number": ("    return a[0]", "    return a[1]"),
    "negative number": ("    return a[-1]", "    return a[-2]"),
    "truth": ("    a = True", "    a = False"),
    "returned name": ("    return a", "    return None"),
    "arguments": ("    return max(a, b)", "    return max(b, a)"),
    "function": ("    return max(a, b)", "    return min(a, b)"),
    "method": ("    return a.lstrip()", "    return a.rstrip()"),
    "variable": ("    return a.x + 1", "    return b.x + 1"),
}


@pytest.mark.parametrize(("clean", "faulty"), LINES.values(), ids=LINES.keys())
def test_each_operator_makes_its_fault_and_reverts_it(clean: str, faulty: str) -> None:
    # Both parities of the line number: which neighbour replaces a variable depends on it.
    found = []
    for padding in ("", "    pass\n"):
        source = f"def f(a, b):\n{padding}{clean}\n"
        for fault in find_faults(source):
            planted = apply_edit(source, fault.plant)
            assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(source))
            assert apply_edit(planted, fault.repair) == source
            found.append(planted.rstrip("\n").split("\n")[-1])
    assert faulty in found


def test_a_loop_jump_is_exchanged() -> None:
    source = "def f(a):\n    for b in a:\n        break\n"
    assert "        continue\n" in {
        apply_edit(source, f.plant).split("in a:\n")[-1] for f in find_faults(source)
    }


def test_strings_docstrings_and_module_lines_are_left_alone() -> None:
    source = 'LIMIT = 1\n\n\ndef f():\n    """1 < 2 and True"""\n    return "a < b"\n'
    assert find_faults(source) == []


def test_columns_after_wide_characters_are_right() -> None:
    source = 'def f(a, b):\n    return ("äß€" + a) < b\n'
    for fault in find_faults(source):
        assert apply_edit(apply_edit(source, fault.plant), fault.repair) == source


@given(st.text("abc <=not()", max_size=30), st.data())
def test_an_edit_at_any_place_reverts_exactly(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    new = data.draw(st.text("abc <=", max_size=6))
    pair = edit_at(text, 1, start, text[start:end], new, "any")
    if pair is None:
        return
    plant, repair = pair
    assert plant.old
    assert repair.old
    planted = apply_edit(text, plant) if "\n" not in text else ""
    assert planted == text[:start] + new + text[end:]
    assert apply_edit(planted, repair) == text


@given(st.text("ab", max_size=12), st.text("ab", min_size=1, max_size=3), st.integers(0, 12))
def test_the_counted_occurrence_is_the_one_that_is_replaced(text: str, old: str, column: int) -> None:
    count = occurrence_at(text, old, column)
    if count is not None:
        assert substitute(text, old, "X", count) == text[:column] + "X" + text[column + len(old) :]


def test_an_edit_that_does_not_fit_is_an_error() -> None:
    fault = find_faults("def f(a, b):\n    return a < b\n")[0]
    with pytest.raises(ValueError, match="not on line"):
        apply_edit("def f(a, b):\n    pass\n", fault.plant)
    with pytest.raises(ValueError, match="no line"):
        apply_edit("x\n", fault.plant)


def test_candidates_hold_the_repair_of_the_symmetric_operators() -> None:
    assert (">", ">=") in candidate_edits("        if size > maxsize:")
    assert (" and ", " or ") in candidate_edits("    return a and b")
    assert ("1", "0") in candidate_edits("    return a[1]")
    assert ("if not ", "if ") in candidate_edits("    if not found:")
    assert ("min", "max") in candidate_edits("    return min(a, b)")
    assert ("a, b", "b, a") in candidate_edits("    f(a, b)")


@given(st.text("ab <>=+-1not(,)[]'#", max_size=40))
def test_candidates_apply_and_change_the_line(line: str) -> None:
    for old, new in candidate_edits(line):
        assert substitute(line, old, new, 1) not in (None, line)


def test_candidates_leave_strings_and_comments_alone() -> None:
    assert candidate_edits("    'a < b'  # x > y") == []
