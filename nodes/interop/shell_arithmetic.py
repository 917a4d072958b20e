"""The whole-number arithmetic of a shell, `$((1024 * 4))`, evaluated without running anything."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

MOST = 2**63  # a shell's own numbers end there
LONGEST = 500
# What a shell and Python read alike: 017 and 10#08 are other numbers to a shell, 1_000 none.
_ALIKE = re.compile(r"(?:[A-Za-z_]\w*\b|0[xX][0-9a-fA-F]+\b|(?:0|[1-9][0-9]*)\b|[-+*/%()\s])*", re.ASCII)
_DECIMAL = re.compile(r"\s*[-+]?(?:0|[1-9][0-9]*)\s*")


class Unknown(Exception):
    """An expression whose value only a running shell knows; `name` says of what."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def evaluated(text: str, value_of: Callable[[str], str]) -> int:
    """Evaluate an expression of + - * / % and brackets; `value_of` gives what a variable holds.

    >>> evaluated("(1024 * N) / 3", {"N": "2"}.__getitem__)
    682

    Raises Unknown for anything else, and where a variable holds no number.
    """
    plain = re.sub(r"\$\{?(\w+)\}?", r"\1", text).strip()
    if len(plain) > LONGEST or not _ALIKE.fullmatch(plain):
        raise Unknown(f"$(({plain[:20]}…))" if len(plain) > LONGEST else f"$(({plain[:40]}))")
    try:
        tree = ast.parse(re.sub(r"(?<!/)/(?!/)", "//", plain), mode="eval")
        return _value(tree.body, value_of)
    except (SyntaxError, ValueError, RecursionError, ZeroDivisionError, MemoryError):
        raise Unknown(f"$(({plain[:40]}))") from None


def _value(node: ast.expr, value_of: Callable[[str], str]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        found = node.value
    elif isinstance(node, ast.Name):
        told = value_of(node.id)
        if not _DECIMAL.fullmatch(told):
            raise ValueError
        found = int(told)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        inner = _value(node.operand, value_of)
        found = -inner if isinstance(node.op, ast.USub) else inner
    elif isinstance(node, ast.BinOp):
        found = _binary(node.op, _value(node.left, value_of), _value(node.right, value_of))
    else:
        raise ValueError
    if abs(found) > MOST:
        raise ValueError
    return found


def _binary(op: ast.operator, left: int, right: int) -> int:
    if isinstance(op, ast.Add):
        return left + right
    if isinstance(op, ast.Sub):
        return left - right
    if isinstance(op, ast.Mult):
        return left * right
    if isinstance(op, ast.FloorDiv):
        return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    if isinstance(op, ast.Mod):
        return left - right * _binary(ast.FloorDiv(), left, right)
    raise ValueError
