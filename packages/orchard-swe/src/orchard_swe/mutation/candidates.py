"""Plausible single-edit repairs of a line, from its text alone."""

from __future__ import annotations

import re

from orchard_swe.mutation.edits import substitute
from orchard_swe.mutation.tables import (
    ARITHMETIC,
    AUGMENTED,
    BOOLEAN,
    COMPARISONS,
    JUMPS,
    NAMES,
    WORDS,
    other_integers,
)

_TOKEN = re.compile(
    r"(?P<string>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<comment>\#.*)"
    r"|(?P<word> (?:is not|not in|is|in|and|or) )"
    r"|(?P<integer>(?<![\w.])-?\d+(?![\w.]))|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>//=|\*\*|<<=|>>=|<=|>=|==|!=|\+=|-=|\*=|\|=|&=|//|<<|>>|[-+*/%<>&|^])"
)
_KEYWORDS = frozenset(
    [
        "and",
        "as",
        "assert",
        "async",
        "await",
        "break",
        "class",
        "continue",
        "def",
        "del",
        "elif",
        "else",
        "except",
        "finally",
        "for",
        "from",
        "global",
        "if",
        "import",
        "in",
        "is",
        "lambda",
        "nonlocal",
        "not",
        "or",
        "pass",
        "raise",
        "return",
        "try",
        "while",
        "with",
        "yield",
        "None",
        "True",
        "False",
        "self",
        "cls",
    ]
)
_NEGATABLE = re.compile(r"\b(if|elif|while) (not )?")
_CALL_PAIR = re.compile(r"[(,] ?([\w.\[\]]+), ([\w.\[\]]+)(?=[),])")


def candidate_edits(source_line: str, *, exchange: bool = True) -> list[tuple[str, str]]:
    """(old, new) pairs, in the order of the line; each changes the first occurrence of `old`.

    Strings and comments are left alone. With `exchange`, names are also exchanged for other names of the
    same line, and neighbouring arguments for each other.
    """
    found: dict[tuple[str, str], None] = {}
    names = _names(source_line) if exchange else []
    for match in _TOKEN.finditer(source_line):
        for new in _replacements(match, names):
            found.setdefault((match.group(), new))
    for match in _NEGATABLE.finditer(source_line):
        plain, negated = f"{match.group(1)} ", f"{match.group(1)} not "
        found.setdefault((negated, plain) if match.group(2) else (plain, negated))
    for match in _CALL_PAIR.finditer(source_line) if exchange else ():
        left, right = match.groups()
        found.setdefault((f"{left}, {right}", f"{right}, {left}"))
    return [
        (old, new) for old, new in found if substitute(source_line, old, new, 1) not in (None, source_line)
    ]


def _names(line: str) -> list[str]:
    found = [m.group() for m in _TOKEN.finditer(line) if m.lastgroup == "name"]
    return [name for name in dict.fromkeys(found) if name not in _KEYWORDS]


def _replacements(match: re.Match[str], names: list[str]) -> tuple[str, ...]:
    text = match.group()
    if match.lastgroup == "word":
        bare = text.strip()
        return tuple(f" {new} " for new in (COMPARISONS | BOOLEAN)[bare])
    if match.lastgroup == "sign":
        return (COMPARISONS | ARITHMETIC | AUGMENTED).get(text, ())
    if match.lastgroup == "integer":
        return other_integers(text)
    if match.lastgroup == "name":
        if text in WORDS or text in JUMPS or text in NAMES:
            return (WORDS | JUMPS | NAMES)[text]
        if text == "None":
            return tuple(names)
        if text not in _KEYWORDS:
            return tuple(name for name in names if name != text)
    return ()
