"""The wire format survives any cutting of the byte stream and refuses what it did not make."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import orchard_core.sandboxd
from orchard_core.sandboxd import wire
from orchard_core.sandboxd.output import Capture

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.binary(max_size=50)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    | st.binary(max_size=20).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)
FRAMES = st.tuples(st.integers(wire.CONFIG, wire.BYE), st.integers(0, 2**32 - 1), st.binary(max_size=300))


@given(VALUES)
def test_values_come_back(value: Any) -> None:
    assert wire.unpack(wire.pack(value)) == value


@given(VALUES, st.data())
def test_a_cut_value_is_refused(value: Any, data: st.DataObject) -> None:
    packed = wire.pack(value)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(wire.WireError):
        wire.unpack(packed[:cut])


@given(st.binary(max_size=200))
def test_arbitrary_bytes_give_a_value_or_a_wire_error(raw: bytes) -> None:
    try:
        value = wire.unpack(raw)
    except wire.WireError:
        return
    wire.pack(value)


def test_deep_nesting_is_refused_rather_than_overflowing_the_stack() -> None:
    with pytest.raises(wire.WireError):
        wire.unpack((b"l" + b"\0\0\0\1") * 100_000 + b"N")


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(1, 400), max_size=30))
def test_frames_come_back_however_they_are_cut(frames: list[tuple[int, int, bytes]], cuts: list[int]) -> None:
    stream = b"".join(wire.frame(*frame) for frame in frames)
    parser = wire.FrameParser()
    found: list[tuple[int, int, bytes]] = []
    for size in [*cuts, len(stream)]:
        found += parser.feed(stream[:size])
        stream = stream[size:]
    assert found == frames


@pytest.mark.parametrize("header", [(0, 0, 0), (99, 0, 0), (wire.DATA, 1, wire.MAX_PAYLOAD + 1)])
def test_a_bad_header_is_refused(header: tuple[int, int, int]) -> None:
    with pytest.raises(wire.WireError):
        list(wire.FrameParser().feed(wire.HEADER.pack(*header)))


@given(st.integers(0, 60), st.lists(st.binary(max_size=40), max_size=20))
def test_captured_output_is_head_and_tail_with_the_rest_counted(limit: int, pieces: list[bytes]) -> None:
    capture = Capture(limit)
    for piece in pieces:
        capture.write(piece)
    kept, dropped = capture.finish()
    whole = b"".join(pieces)
    assert len(kept) + dropped == len(whole)
    if len(whole) <= limit:
        assert kept == whole
    else:
        assert len(kept) == limit
        assert kept == whole[: limit - limit // 2] + (whole[-(limit // 2) :] if limit // 2 else b"")


def test_sandboxd_is_old_python_and_only_standard_library() -> None:
    for file in Path(orchard_core.sandboxd.__file__).parent.glob("*.py"):
        tree = ast.parse(file.read_text(), feature_version=(3, 8))
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in sys.stdlib_module_names, f"{file.name} imports {name}"
