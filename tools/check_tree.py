"""Checks that the tree speaks of the product alone: no registry hosts, no paths of one machine.

usage: check_tree.py [ROOT]
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

RULES = {
    "a package registry's host": re.compile(r"//[a-z.]*(?:debian|npmjs|pythonhosted|pypi)\.(?:org|com)"),
    "a path of one machine": re.compile(r"(?<![\w.])/(?:root|work|opt/wheels)/[\w.]"),
    "an issue's number": re.compile(r"\bissue #?\d+\b", re.IGNORECASE),
}
EXEMPT = {"tools/check_tree.py", "tests/test_repository.py"}


def tracked(root: Path) -> list[str]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split("\0") if name]


def check(root: Path) -> list[str]:
    """All problems in the tracked text files."""
    found = []
    for name in tracked(root):
        path = root / name
        if name in EXEMPT or not path.is_file():
            continue
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(lines, 1):
            found += [f"{name}:{number}: {what}" for what, rule in RULES.items() if rule.search(line)]
    return found


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found = check(root)
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
