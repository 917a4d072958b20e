"""Score reasoning-gym tasks with the library's scorers, modified so that an answer is parsed and never run.

Ten scorers call `eval`, or sympy's parser, which evaluates, on texts of a model or a data set. In their modules these
names are replaced by parsers of literals, of integer arithmetic and of expressions.
"""

from __future__ import annotations

import ast
import functools
import importlib
import math
import operator
import types
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from nodes.scoring.answer_text import tagged_answer

Scorer = Callable[[str, dict[str, Any]], float]

LITERAL_CHARACTERS = 20_000
EXPRESSION_CHARACTERS = 2_000
EXPRESSION_BITS = 4_096
FUNCTIONS = frozenset(
    "sin cos tan sec csc cot asin acos atan sinh cosh tanh exp log ln sqrt Abs erf".split()  # noqa: SIM905
)
CONSTANTS = frozenset({"pi", "E", "C", "I"})
_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}


def extract_answer(response: str) -> str:
    r"""Return the contents of the last `<answer>…</answer>`, or else the whole response, without surrounding spaces.

    Source: reasoning-gym 0.1.25, `extract_answer`. Deviation: its time is linear in the response's length.

    >>> extract_answer("so <answer> 4 </answer>, no: <answer>5</answer>"), extract_answer(" 4\n")
    ('5', '4')
    """
    answer = tagged_answer(response)
    return response.strip() if answer is None else answer


def score_answer(task: str, answer: str, entry: dict[str, Any]) -> float | None:
    """Return the score of an answer by its task's scorer, clipped to 0 … 1; None if the scorer raises or has no number.

    If the scorer raises on the correct answer in `entry` too, the entry is broken and that error is raised. An unknown
    task raises the library's error.
    """
    scorer = task_scorer(task)
    try:
        score: object = scorer(answer, entry)
    except Exception:  # noqa: BLE001 - each task has separate code, mostly written for well-formed answers
        if entry["answer"] is not None:
            scorer(entry["answer"], entry)
        return None
    if not isinstance(score, Real) or not math.isfinite(score):
        return None
    return min(1.0, max(0.0, float(score)))


def read_literal(text: str) -> object:
    """Return the value of a Python literal, such as a list, text or number.

    Raises ValueError for over 20,000 characters, and the errors of `ast.literal_eval`, for example ValueError or
    SyntaxError, for anything but a literal.

    >>> read_literal("[[1, 0], [0, 1]]")
    [[1, 0], [0, 1]]
    """
    if len(text) > LITERAL_CHARACTERS:
        raise ValueError(f"over {LITERAL_CHARACTERS} characters")
    literal: object = ast.literal_eval(text)
    return literal


def read_integers(text: str) -> int:
    """Return the value of an integer expression with +, -, *, <<, >>, &, | and ^.

    Raises ValueError for anything else, for over 2,000 characters, and for values of over 4,096 bits.

    >>> read_integers("((0x3a << 0x1) - 1)")
    115
    """
    return _integer(_parsed(text).body)


def _integer(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_integer(operand)
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _ARITHMETIC:
            first, second = _integer(left), _integer(right)
            shift = max(0, second) if isinstance(op, ast.LShift) else second.bit_length()
            if first.bit_length() + shift > EXPRESSION_BITS:
                raise ValueError("its value would be too large")
            return _ARITHMETIC[type(op)](first, second)
        case _:
            raise ValueError(f"{type(node).__name__} is not integer arithmetic")


def read_expression(text: str, local_dict: Mapping[str, Any] | None = None) -> Any:
    """Return a mathematical expression as a sympy object.

    It may contain numbers, one-letter names, `pi`, names in `local_dict`, + - * / **, parentheses and common functions.
    Raises ValueError for other text, for over 2,000 characters, and for an expression whose value is too large to
    compute.

    >>> read_expression("3*x**2 + sin(x)")
    3*x**2 + sin(x)
    """
    import sympy

    names = frozenset(local_dict or ())
    if _bits(_parsed(text).body, names) > EXPRESSION_BITS:
        raise ValueError("its value would be too large")
    return sympy.parse_expr(text, local_dict=dict(local_dict or {}))


def _parsed(text: str) -> ast.Expression:
    if len(text) > EXPRESSION_CHARACTERS:
        raise ValueError(f"over {EXPRESSION_CHARACTERS} characters")
    try:
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("not an expression") from error


def _bits(node: ast.expr, names: frozenset[str]) -> float:
    """Return an upper bound of the bits of an expression's value; ValueError for anything but an expression."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool) and math.isfinite(value):
            return max(1.0, math.log2(abs(value) or 1) + 1, len(repr(value)) * 4.0 if isinstance(value, float) else 0.0)
        case ast.Name(id=name) if len(name) == 1 or name in names or name in CONSTANTS:
            return 1.0
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            return _bits(operand, names)
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), left=left, right=right):
            return _bits(left, names) + _bits(right, names)
        case ast.BinOp(op=ast.Pow(), left=left, right=right):
            exponent = _bits(right, names)
            return _bits(left, names) * math.pow(2.0, min(exponent, 64.0))
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in FUNCTIONS:
            return _bits(argument, names)
        case _:
            raise ValueError(f"{type(node).__name__} is not supported")


_LITERALS = ("algorithmic.string_insertion", "algorithmic.spiral_matrix", "algorithmic.binary_matrix")
_EVALUATED: dict[str, tuple[str, Callable[..., Any] | None]] = {
    **dict.fromkeys((*_LITERALS, "algorithmic.number_sorting", "games.n_queens"), ("eval", read_literal)),
    "arithmetic.bitwise_arithmetic": ("eval", read_integers),
    **dict.fromkeys(("games.puzzle24", "games.countdown"), ("parse_expr", read_expression)),
    "algebra.polynomial_multiplication": ("sp", None),
    **dict.fromkeys(("algebra.simple_integration", "algebra.intermediate_integration"), ("sympy", None)),
}
"""What evaluates text, by module of reasoning-gym: a name there, and what replaces it; None: a safe sympy."""


@functools.cache
def task_scorer(task: str) -> Scorer:
    """Return reasoning-gym's scorer of a task, changed so that it parses texts and never runs them; cached.

    The change applies to reasoning-gym's modules in the whole process. An unknown task raises the library's error.
    """
    import sympy

    safe_sympy = types.SimpleNamespace(**{**vars(sympy), "parse_expr": read_expression})
    for module, (name, reader) in _EVALUATED.items():
        vars(importlib.import_module(f"reasoning_gym.{module}"))[name] = reader or safe_sympy
    scorer: Scorer = importlib.import_module("reasoning_gym").get_score_answer_fn(task)
    return scorer
