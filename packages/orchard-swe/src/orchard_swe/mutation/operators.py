"""Plants single faults: each is one AST change that is also a substitution on one line.

The operators are those of classic mutation analysis (DeMillo, Lipton and Sayward, "Hints on Test
Data Selection", 1978; Offutt et al. on sufficient operators, 1996): relational, arithmetic,
logical, constant, statement and argument changes.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from orchard_swe.mutation.edits import LineEdit, edit_at
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

MAX_SIDE = 40
Raw = tuple[int, int, str, str, str]
"""line, column (characters), old text, new text, kind."""

_COMPARE_TEXT = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
_BINARY_TEXT = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.LShift: "<<", ast.RShift: ">>", ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """A planted fault: `plant` makes it, `repair` reverts it; both act on the same line."""

    function: str
    plant: LineEdit
    repair: LineEdit

    @property
    def kind(self) -> str:
        return self.plant.kind


@dataclass(frozen=True, slots=True)
class _Scope:
    """A source file's lines, and the function that is being walked."""

    lines: list[str]
    function: str
    names: tuple[str, ...]

    def text(self, node: ast.expr) -> str | None:
        """The node's text when it lies on one line."""
        if node.lineno != node.end_lineno or node.end_col_offset is None:
            return None
        raw = self.lines[node.lineno - 1].encode()
        return raw[node.col_offset : node.end_col_offset].decode()

    def column(self, line: int, offset: int) -> int:
        """A byte offset of the AST as a column in characters."""
        return len(self.lines[line - 1].encode()[:offset].decode())

    def between(self, left: ast.expr, right: ast.expr) -> tuple[int, int, str] | None:
        """The line, column and text between two operands on one line."""
        if left.end_lineno != right.lineno or left.end_col_offset is None:
            return None
        start = self.column(right.lineno, left.end_col_offset)
        end = self.column(right.lineno, right.col_offset)
        return right.lineno, start, self.lines[right.lineno - 1][start:end]


def find_faults(source: str, *, checked: bool = True) -> list[Fault]:
    """All faults that the operators can plant in the functions of `source`, in source order.

    Raises SyntaxError when the source does not parse. Every fault parses and changes the AST; with
    `checked` off a few may not, and it takes a tenth of the time.
    """
    tree = ast.parse(source)
    lines = source.split("\n")
    if len(lines) != len(source.splitlines()) + source.endswith("\n") or "\r" in source:
        return []  # form feeds and the like: line numbers of the AST and of the text differ
    found: dict[tuple[int, str, str, int], Fault] = {}
    for function, name in _functions(tree):
        scope = _Scope(lines, name, _local_names(function))
        body = _Body(function, lines)
        for line, column, old, new, kind in _raw_edits(function, scope):
            if "\n" in old or len(old) > MAX_SIDE or len(new) > MAX_SIDE:
                continue
            pair = edit_at(lines[line - 1], line, column, old, new, kind)
            if pair is None:
                continue
            plant, repair = pair
            key = (line, plant.old, plant.new, plant.occurrence)
            if key not in found and (not checked or body.changed_by(line, column, old, new)):
                found[key] = Fault(name, plant, repair)
    return sorted(found.values(), key=lambda f: (f.plant.line, f.plant.old, f.plant.new, f.plant.occurrence))


class _Body:
    """One function's lines, to see cheaply whether a change parses and matters."""

    def __init__(self, function: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> None:
        self._first = function.lineno
        self._lines = lines[function.lineno - 1 : function.end_lineno]
        self._clean = self._dump(self._lines)

    def changed_by(self, line: int, column: int, old: str, new: str) -> bool:
        index = line - self._first
        text = self._lines[index]
        if text[column : column + len(old)] != old:
            return False
        changed = text[:column] + new + text[column + len(old) :]
        tree = self._dump([*self._lines[:index], changed, *self._lines[index + 1 :]])
        return tree is not None and tree != self._clean

    @staticmethod
    def _dump(lines: list[str]) -> str | None:
        try:  # an indented function stands below a condition
            return ast.dump(ast.parse("\n".join(["if 1:", *lines] if lines[0][:1].isspace() else lines)))
        except SyntaxError:
            return None


def _functions(
    tree: ast.AST, prefix: str = ""
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    """Outermost functions and methods with their qualified names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node, prefix + node.name
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            yield from _functions(node, prefix)


def _local_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    """Parameters and assigned names, in order of appearance."""
    names: dict[str, None] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            names.setdefault(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.setdefault(node.id)
    return tuple(name for name in names if name not in ("self", "cls", "_"))


def _raw_edits(function: ast.FunctionDef | ast.AsyncFunctionDef, scope: _Scope) -> Iterator[Raw]:
    for statement in function.body:
        for node in ast.walk(statement):
            for operator in _OPERATORS:
                yield from operator(node, scope)


def _compare(node: ast.AST, scope: _Scope) -> Iterator[Raw]:
    if not isinstance(node, ast.Compare):
        return
    operands = [node.left, *node.comparators]
    for index, op in enumerate(node.ops):
        text = _COMPARE_TEXT[type(op)]
        for new in COMPARISONS[text]:
            yield from _operator(scope, operands[index], operands[index + 1], text, new, "comparison")


def _arithmetic(node: ast.AST, scope: _Scope) -> Iterator[Raw]:
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY_TEXT:
        if isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant | ast.JoinedStr):
            return  # string formatting
        text = _BINARY_TEXT[type(node.op)]
        for new in ARITHMETIC[text]:
            yield from _operator(scope, node.left, node.right, text, new, "arithmetic")
    elif isinstance(node, ast.AugAssign) and type(node.op) in _BINARY_TEXT:
        text = _BINARY_TEXT[type(node.op)] + "="
        for new in AUGMENTED.get(text, ()):
            yield from _operator(scope, node.target, node.value, text, new, "assignment")


def _boolean(node: ast.AST, scope: _Scope) -> Iterator[Raw]:
    if isinstance(node, ast.BoolOp):
        text = "and" if isinstance(node.op, ast.And) else "or"
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from _operator(scope, left, right, text, BOOLEAN[text][0], "boolean")


def _operator(scope: _Scope, left: ast.expr, right: ast.expr, old: str, new: str, kind: str) -> Iterator[Raw]:
    gap = scope.between(left, right)
    if gap is None:
        return
    line, start, text = gap
    if old.isalpha() or " " in old:
        old, new = f" {old} ", f" {new} "
    if text.strip(" ()") == old.strip():
        yield line, start + text.index(old) if old in text else start, old, new, kind


def _negation(node: ast.AST, scope: _Scope) -> Iterator[Raw]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.lineno, scope.column(node.lineno, node.col_offset), "not ", "", "negation"
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        test = node.test
        if isinstance(test, ast.Name | ast.Attribute | ast.Call) and scope.text(test) is not None:
            yield test.lineno, scope.column(test.lineno, test.col_offset), "", "not ", "negation"


def _constant(node: ast.AST, scope: _Scope) -> Iterator[Raw]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        target: ast.expr = node
        if not isinstance(node.operand, ast.Constant):
            return
    elif isinstance(node, ast.Constant):
        target = node
    else:
        return
    text = scope.text(target)
    if text is None:
        return
    column = scope.column(target.lineno, target.col_offset)
    if text in WORDS:
        yield target.lineno, column, text, WORDS[text][0], "constant"
    elif text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 6:
        for new in other_integers(text):
            yield target.lineno, column, text, new, "constant"


def _returned(node: ast.AST, scope: _Scope) -> Iterator[Raw]:
    if not isinstance(node, ast.Return) or node.value is None or isinstance(node.value, ast.Constant):
        return
    text = scope.text(node.value)
    if text is not None and len(text) <= 16 and text.isidentifier():
        yield node.lineno, scope.column(node.lineno, node.value.col_offset), text, "None", "return"


def _arguments(node: ast.AST, scope: _Scope) -> Iterator[Raw]:
    if not isinstance(node, ast.Call):
        return
    for left, right in zip(node.args, node.args[1:], strict=False):
        texts = scope.text(left), scope.text(right)
        gap = scope.between(left, right)
        if gap is None or texts[0] is None or texts[1] is None or gap[2] != ", ":
            continue
        if any(isinstance(side, ast.Starred | ast.GeneratorExp) for side in (left, right)):
            continue
        if len(texts[0]) + len(texts[1]) <= 24:
            column = scope.column(left.lineno, left.col_offset)
            old, new = f"{texts[0]}, {texts[1]}", f"{texts[1]}, {texts[0]}"
            yield left.lineno, column, old, new, "arguments"


def _names(node: ast.AST, scope: _Scope) -> Iterator[Raw]:
    """A known method or function by its counterpart, or a local name by the one before or after it."""
    if isinstance(node, ast.Attribute) and node.attr in NAMES and node.lineno == node.end_lineno:
        assert node.end_col_offset is not None
        column = scope.column(node.lineno, node.end_col_offset) - len(node.attr)
        yield node.lineno, column, node.attr, NAMES[node.attr][0], "call"
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        column = scope.column(node.lineno, node.col_offset)
        if node.id in NAMES and node.id not in scope.names:
            yield node.lineno, column, node.id, NAMES[node.id][0], "call"
        elif node.id in scope.names:
            index = scope.names.index(node.id)
            near = index + 1 if (node.lineno + index) % 2 else index - 1
            if 0 <= near < len(scope.names):
                yield node.lineno, column, node.id, scope.names[near], "variable"


def _jump(node: ast.AST, scope: _Scope) -> Iterator[Raw]:
    if isinstance(node, ast.Break | ast.Continue):
        old = "break" if isinstance(node, ast.Break) else "continue"
        yield node.lineno, scope.column(node.lineno, node.col_offset), old, JUMPS[old][0], "jump"


_OPERATORS: tuple[Callable[[ast.AST, _Scope], Iterator[Raw]], ...] = (
    _compare, _arithmetic, _boolean, _negation, _constant, _returned, _arguments, _names, _jump,
)  # fmt: skip
