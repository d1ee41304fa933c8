"""The tables that planting a fault and guessing a repair share."""

from __future__ import annotations

COMPARISONS: dict[str, tuple[str, ...]] = {
    "<": ("<=", ">"),
    "<=": ("<", ">="),
    ">": (">=", "<"),
    ">=": (">", "<="),
    "==": ("!=",),
    "!=": ("==",),
    "is": ("is not",),
    "is not": ("is",),
    "in": ("not in",),
    "not in": ("in",),
}

ARITHMETIC: dict[str, tuple[str, ...]] = {
    "+": ("-",),
    "-": ("+",),
    "*": ("//", "+"),
    "/": ("*",),
    "//": ("*", "/"),
    "%": ("//",),
    "**": ("*",),
    "<<": (">>",),
    ">>": ("<<",),
    "&": ("|",),
    "|": ("&",),
    "^": ("|",),
}

AUGMENTED: dict[str, tuple[str, ...]] = {
    "+=": ("-=", "="),
    "-=": ("+=", "="),
    "*=": ("+=",),
    "//=": ("*=",),
    "|=": ("&=",),
    "&=": ("|=",),
    "<<=": (">>=",),
    ">>=": ("<<=",),
}

BOOLEAN: dict[str, tuple[str, ...]] = {"and": ("or",), "or": ("and",)}

WORDS: dict[str, tuple[str, ...]] = {"True": ("False",), "False": ("True",)}

JUMPS: dict[str, tuple[str, ...]] = {"break": ("continue",), "continue": ("break",)}

NAMES: dict[str, tuple[str, ...]] = {
    "min": ("max",),
    "max": ("min",),
    "any": ("all",),
    "all": ("any",),
    "append": ("extend",),
    "extend": ("append",),
    "startswith": ("endswith",),
    "endswith": ("startswith",),
    "lstrip": ("rstrip",),
    "rstrip": ("lstrip",),
    "find": ("rfind",),
    "rfind": ("find",),
    "split": ("rsplit",),
    "rsplit": ("split",),
    "partition": ("rpartition",),
    "rpartition": ("partition",),
    "lower": ("upper",),
    "upper": ("lower",),
    "isupper": ("islower",),
    "islower": ("isupper",),
    "keys": ("values",),
    "values": ("keys",),
    "popleft": ("pop",),
    "appendleft": ("append",),
    "setdefault": ("get",),
    "floor": ("ceil",),
    "ceil": ("floor",),
    "union": ("intersection",),
    "intersection": ("union",),
}


def other_integers(text: str) -> tuple[str, ...]:
    """The neighbours of a small decimal integer literal (a leading minus allowed)."""
    value = int(text)
    if abs(value) > 9999:
        return ()
    near = [value + 1, value - 1] if value not in (-1, 1) else [0, 2 * value]
    return tuple(str(n) for n in near if (n >= 0) == (value >= 0) or n == 0 or value == 0)
