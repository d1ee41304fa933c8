"""Checks which room imports which, and how long files are.

usage: check_imports.py [ROOT]

The rooms of orchard_core form layers; a module imports from its own layer or lower ones only,
`orchard_core` never imports a domain, and the light rooms import no heavy package.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

LAYERS = {
    "errors": 0,
    "options": 0,
    "sandboxd": 0,
    "recipe": 1,
    "env.spec": 1,
    "env.errors": 1,
    "env.handle": 1,
    "domain": 2,
    "trajectory": 3,
    "reward": 3,
    "env": 4,
    "engine": 4,
    "harness": 4,
    "proxy": 5,
    "rollout": 6,
    "train": 6,
    "ui": 7,
    "pipeline": 8,
    "cli": 9,
}
FORBIDDEN_PAIRS = {("train", "rollout"), ("sandboxd", "errors")}
LIGHT = {"errors", "sandboxd", "recipe", "domain", "trajectory"}
HEAVY = {"torch", "transformers", "tokenizers", "fastapi", "kubernetes", "matplotlib"}
DOMAINS = {"orchard_swe", "orchard_gui", "orchard_claw"}
MAX_LINES = 450


def room_of(module: str) -> str | None:
    """The layer name of a dotted module of orchard_core; None for the package itself."""
    parts = module.split(".")[1:]
    if not parts:
        return None
    double = ".".join(parts[:2])
    return double if double in LAYERS else parts[0]


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of everything that a module imports, at any depth."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.lineno, node.module


def problems_of(path: Path, module: str, package: str) -> Iterator[str]:
    """What is wrong with one file, a line each."""
    text = path.read_text(encoding="utf-8")
    if text.count("\n") > MAX_LINES:
        yield f"{path}: {text.count(chr(10))} lines; one idea a file, at most {MAX_LINES}"
    room = room_of(module) if package == "orchard_core" else None
    for line, name in imported(ast.parse(text, str(path))):
        top = name.split(".")[0]
        if package in {"orchard_core", "orchard_value"} and top in DOMAINS:
            yield f"{path}:{line}: {package} must not import the domain {top}"
        elif package in DOMAINS and top in DOMAINS - {package}:
            yield f"{path}:{line}: the domain {package} must not import the domain {top}"
        elif room is not None and top == "orchard_core":
            yield from wrong_direction(path, line, room, name)
        elif room in LIGHT and top in HEAVY:
            yield f"{path}:{line}: {room} must stay light and not import {top}"


def wrong_direction(path: Path, line: int, room: str, name: str) -> Iterator[str]:
    target = room_of(name)
    if target is None or target == room or target.split(".")[0] == room.split(".")[0]:
        return
    if room not in LAYERS or target not in LAYERS:
        unknown = room if room not in LAYERS else target
        yield f"{path}:{line}: the room {unknown!r} has no layer yet; add it to LAYERS"
    elif LAYERS[target] > LAYERS[room] or (room, target) in FORBIDDEN_PAIRS:
        yield f"{path}:{line}: {room} must not import {target}"


def check(root: Path) -> list[str]:
    """All problems below `root`/packages."""
    found: list[str] = []
    for source in sorted(root.glob("packages/*/src/*")):
        for path in sorted(source.rglob("*.py")):
            module = ".".join([source.name, *path.relative_to(source).with_suffix("").parts])
            found += problems_of(path, module.removesuffix(".__init__"), source.name)
    return found


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found = check(root)
    for problem in found:
        print(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
