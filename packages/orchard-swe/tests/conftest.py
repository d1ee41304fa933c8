"""A tiny package with faults to plant, as a source distribution in a cache of its own."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchard_core.env.handle import Provider
from orchard_core.env.providers.bubblewrap import BubblewrapProvider

SOURCE = '''"""Small sums."""


def clamp(value, low, high):
    """Keep a value between two bounds."""
    if value < low:
        return low
    if value > high:
        return high
    return value


def total(values):
    result = 0
    for value in values:
        result += value
    return result


def longest(words):
    best = ""
    for word in words:
        if len(word) > len(best):
            best = word
    return best
'''

UNIT_TESTS = """import unittest

from tinysum import clamp, longest, total


class ClampTest(unittest.TestCase):
    def test_below(self):
        self.assertEqual(clamp(-5, 0, 10), 0)

    def test_above(self):
        self.assertEqual(clamp(50, 0, 10), 10)

    def test_between(self):
        self.assertEqual(clamp(5, 0, 10), 5)


class OtherTest(unittest.TestCase):
    def test_total(self):
        self.assertEqual(total([1, 2, 3]), 6)

    def test_longest(self):
        self.assertEqual(longest(["a", "bbb", "cc"]), "bbb")
"""

PYTEST_TESTS = """import pytest

from tinysum import clamp, longest, total


@pytest.mark.parametrize("value, expected", [(-5, 0), (50, 10), (5, 5)])
def test_clamp(value, expected):
    assert clamp(value, 0, 10) == expected


def test_total():
    assert total([1, 2, 3]) == 6


def test_longest():
    assert longest(["a", "bbb", "cc"]) == "bbb"
"""


def write_sdist(cache: Path, name: str, version: str, files: dict[str, str]) -> Path:
    """A source distribution where the fetcher looks first, so that no index is asked."""
    folder = cache / "sdists" / f"{name}-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}.tar.gz"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense: MIT\n"
    with tarfile.open(path, "w:gz") as tar:
        for inner, text in {"PKG-INFO": metadata, **files}.items():
            info = tarfile.TarInfo(f"{name}-{version}/{inner}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ORCHARD_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def tiny(cache: Path) -> Path:
    return write_sdist(cache, "tinysum", "1.0", {"tinysum.py": SOURCE, "tests/test_tiny.py": UNIT_TESTS})


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    made = BubblewrapProvider()
    yield made
    await made.close()
