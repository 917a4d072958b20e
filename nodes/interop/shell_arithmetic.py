"""The integer arithmetic of a shell, `$((1024 * 4))`, evaluated without running anything."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

MAX_NUMBER = 2**63  # a shell's integers end there
MAX_CHARACTERS = 500
# What a shell and Python read alike: 017 and 10#08 are other numbers to a shell, and 1_000 is not a number.
_COMMON = re.compile(r"(?:[A-Za-z_]\w*\b|0[xX][0-9a-fA-F]+\b|(?:0|[1-9][0-9]*)\b|[-+*/%()\s])*", re.ASCII)
_DECIMAL = re.compile(r"\s*[-+]?(?:0|[1-9][0-9]*)\s*")
_UNARY: dict[type[ast.unaryop], Callable[[int], int]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda left, right: int(Fraction(left, right)),  # towards zero
    ast.Mod: lambda left, right: left - right * int(Fraction(left, right)),
}


class Unknown(Exception):
    """An expression whose value only a running shell knows; `name` is the expression or the variable."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def evaluate(text: str, value_of: Callable[[str], str]) -> int:
    """Return the value of an integer expression of + - * / % and brackets; division rounds towards zero, as in a shell.

    `value_of` returns the text of a variable. Raises Unknown for any other expression, for one of over 500 characters,
    for a number or an intermediate result beyond ±2⁶³, for a division by zero, and for a variable that is not a decimal
    integer or for which `value_of` raises KeyError. An Unknown that `value_of` raises passes through.

    >>> evaluate("(1024 * N) / 3", {"N": "2"}.__getitem__)
    682
    """
    plain = re.sub(r"\$\{?(\w+)\}?", r"\1", text).strip()
    if len(plain) > MAX_CHARACTERS:
        raise Unknown(f"$(({plain[:20]}…))")
    unknown = Unknown(f"$(({plain[:40]}))")
    if not _COMMON.fullmatch(plain):
        raise unknown
    try:
        return _value(ast.parse(re.sub(r"(?<!/)/(?!/)", "//", plain), mode="eval").body, value_of)
    except (SyntaxError, ValueError, KeyError, RecursionError, ZeroDivisionError, MemoryError):
        raise unknown from None


def _value(node: ast.expr, value_of: Callable[[str], str]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        value = node.value
    elif isinstance(node, ast.Name) and _DECIMAL.fullmatch(text := value_of(node.id)):
        value = int(text)
    elif isinstance(node, ast.UnaryOp):
        value = _UNARY[type(node.op)](_value(node.operand, value_of))
    elif isinstance(node, ast.BinOp):
        value = _BINARY[type(node.op)](_value(node.left, value_of), _value(node.right, value_of))
    else:
        raise ValueError
    if abs(value) > MAX_NUMBER:
        raise ValueError
    return value
