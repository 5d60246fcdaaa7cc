"""Check the formulas of a torch.export file before torch evaluates them.

There are two kinds. A *size* (`2*s0 + 1`, `Mul(Integer(2), Symbol('s0', integer=True))`) goes to sympy, which runs any
text as Python, also text within text. A *guard* (`L['x'].size()[0] >= 2`) becomes part of a Python function. So each is
parsed here and must follow one of the two grammars below. Numbers and terms are bounded, too: `9**9**9` is valid
arithmetic and never ends.
"""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

LONGEST_TEXT = 4_000
MAX_DEPTH = 40
MOST_BITS = 2_048
"""Most bits of a result; a size has 64."""
MOST_TERMS = 1_000
"""Most terms of a formula after its products are expanded, as torch does."""
LARGEST_EXPONENT = 8
MOST_ARGUMENTS = 32

SYMBOL = re.compile(r"(s|u|z|zf|zuf)\d{1,4}")
_DECIMAL = re.compile(r"[+-]?\d{1,40}(\.\d{0,40})?(e[+-]?\d{1,3})?")
_CONSTANTS = {"oo", "int_oo", "true", "false"}
_FUNCTIONS = {
    "Add", "And", "CeilDiv", "CeilToInt", "CleanDiv", "Eq", "Equality", "FloatTrueDiv", "FloorDiv", "FloorToInt", "Ge",
    "GreaterThan", "Gt", "Identity", "IntTrueDiv", "Integer", "Le", "LessThan", "Lt", "Max", "Min", "Mod",
    "ModularIndexing", "Mul", "Ne", "Not", "Or", "PythonMod", "Rational", "RoundToInt", "StrictGreaterThan",
    "StrictLessThan", "ToFloat", "TruncToFloat", "TruncToInt", "Unequality", "Where", "ceiling", "floor",
}  # fmt: skip
_GUARD_FUNCTIONS = {
    "Max", "Min", "Mod", "PythonMod", "FloorDiv", "CeilDiv", "max", "min", "torch.sym_max", "torch.sym_min",
    "torch.sym_float", "torch.sym_int", "math.ceil", "math.floor", "math.trunc",
}  # fmt: skip
_LOOKS = {"size", "stride", "dim", "storage_offset"}
_ASSUMPTIONS = {"positive", "integer", "nonnegative", "negative", "finite", "zero", "nonzero", "real"}
_SUMS = (ast.Add, ast.Sub)
_PRODUCTS = (ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)


class _Cost(NamedTuple):
    """Upper bounds of a formula's result."""

    bits: int
    terms: int


class _RefusedError(Exception):
    """The formula is outside the grammar, or too large."""


def is_size(text: str) -> bool:
    """True if sympy may evaluate this text: bounded numbers, symbols and the functions torch writes."""
    return _passes(text, guard=False)


def is_guard(text: str) -> bool:
    """True if this text only compares sizes of the inputs, as in `L['x'].size()[0] >= 2`."""
    return _passes(text, guard=True)


def _passes(text: str, *, guard: bool) -> bool:
    if len(text) > LONGEST_TEXT or not text.isascii() or not text.isprintable():
        return False
    try:
        _cost(ast.parse(text, mode="eval").body, guard, MAX_DEPTH)
    except (SyntaxError, ValueError, RecursionError, MemoryError, _RefusedError):
        return False
    return True


def _cost(node: ast.AST, guard: bool, depth: int) -> _Cost:
    """The bounds of a formula, computed from the inside out; nodes outside the grammar are refused."""
    if depth == 0:
        raise _RefusedError
    cost = _node_cost(node, guard, depth - 1)
    if cost.bits > MOST_BITS or cost.terms > MOST_TERMS:
        raise _RefusedError
    return cost


def _node_cost(node: ast.AST, guard: bool, depth: int) -> _Cost:
    if isinstance(node, ast.Constant):
        return _number(node.value)
    if isinstance(node, ast.Name) and (node.id in _CONSTANTS or SYMBOL.fullmatch(node.id)):
        return _Cost(64, 1)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd | ast.Not):
        return _cost(node.operand, guard, depth)
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Pow):
            return _power(_cost(node.left, guard, depth), node.right)
        return _combine(node.op, _cost(node.left, guard, depth), _cost(node.right, guard, depth))
    if isinstance(node, ast.BoolOp):
        return _sum([_cost(value, guard, depth) for value in node.values])
    if isinstance(node, ast.Compare) and all(isinstance(op, _COMPARISONS) for op in node.ops):
        return _sum([_cost(value, guard, depth) for value in (node.left, *node.comparators)])
    if guard and _is_look(node):
        return _Cost(64, 1)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _call(node, node.func.id, guard, depth)
    if guard and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _call(node, ast.unparse(node.func), guard, depth)
    raise _RefusedError


def _number(value: object) -> _Cost:
    if isinstance(value, bool):
        return _Cost(1, 1)
    if isinstance(value, int):
        return _Cost(value.bit_length(), 1)
    if isinstance(value, float):
        return _Cost(64, 1)
    raise _RefusedError


def _combine(op: ast.operator, left: _Cost, right: _Cost) -> _Cost:
    if isinstance(op, _SUMS):
        return _sum([left, right])
    if isinstance(op, _PRODUCTS):
        return _product([left, right])
    raise _RefusedError


def _sum(parts: list[_Cost]) -> _Cost:
    return _Cost(max(part.bits for part in parts) + len(parts), sum(part.terms for part in parts))


def _product(parts: list[_Cost]) -> _Cost:
    bits, terms = 0, 1
    for part in parts:
        bits, terms = bits + part.bits, terms * part.terms
    return _Cost(bits, terms)


def _power(base: _Cost, exponent: ast.expr) -> _Cost:
    """Only small integers are allowed as exponents: `Pow(s0, Integer(-1))` or `s0**2`."""
    if (
        isinstance(exponent, ast.Call)
        and isinstance(exponent.func, ast.Name)
        and exponent.func.id == "Integer"
    ):
        if len(exponent.args) != 1 or exponent.keywords:
            raise _RefusedError
        exponent = exponent.args[0]
    if isinstance(exponent, ast.UnaryOp) and isinstance(exponent.op, ast.USub):
        exponent = exponent.operand
    times = exponent.value if isinstance(exponent, ast.Constant) else None
    if type(times) is not int or times > LARGEST_EXPONENT:
        raise _RefusedError
    return _Cost(base.bits * max(times, 1), base.terms ** max(times, 1))


def _call(node: ast.Call, name: str, guard: bool, depth: int) -> _Cost:
    if guard:
        if name not in _GUARD_FUNCTIONS or node.keywords:
            raise _RefusedError
    elif name in {"Symbol", "Float"}:
        return _named_call(node, SYMBOL if name == "Symbol" else _DECIMAL)
    elif node.keywords:
        raise _RefusedError
    elif name in {"Pow", "PowByNatural", "FloatPow"} and len(node.args) == 2:
        return _power(_cost(node.args[0], guard, depth), node.args[1])
    elif name not in _FUNCTIONS:
        raise _RefusedError
    if not 1 <= len(node.args) <= MOST_ARGUMENTS:
        raise _RefusedError
    parts = [_cost(argument, guard, depth) for argument in node.args]
    return _product(parts) if name in {"Mul", "Rational"} else _sum(parts)


def _named_call(node: ast.Call, pattern: re.Pattern[str]) -> _Cost:
    """`Symbol('s0', integer=True)` and `Float('0.5', precision=53)`, the only calls with a text argument."""
    text = node.args[0].value if len(node.args) == 1 and isinstance(node.args[0], ast.Constant) else None
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise _RefusedError
    for word in node.keywords:
        value = word.value.value if isinstance(word.value, ast.Constant) else None
        if not (word.arg in _ASSUMPTIONS and isinstance(value, bool)) and (word.arg, value) != (
            "precision",
            53,
        ):
            raise _RefusedError
    return _Cost(64, 1)


def _is_look(node: ast.AST) -> bool:
    """True for `L['x'].size()[0]` and `L['x'].dim()`: the size of an input whose name is an identifier."""
    if isinstance(node, ast.Subscript):
        index = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if type(index) is not int:
            return False
        node = node.value
    if not isinstance(node, ast.Call) or node.args or node.keywords:
        return False
    look = node.func
    return isinstance(look, ast.Attribute) and look.attr in _LOOKS and _is_input(look.value)


def _is_input(node: ast.AST) -> bool:
    """True for `L['x']` or a part of it: `L['x'][0]`, `L['x']['image']`."""
    while isinstance(node, ast.Subscript):
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if not (isinstance(key, str) and key.isidentifier()) and type(key) is not int:
            return False
        if isinstance(node.value, ast.Name):
            return node.value.id == "L" and isinstance(key, str)
        node = node.value
    return False
