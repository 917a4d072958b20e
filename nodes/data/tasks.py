"""Seeded tasks that need no download: questions on digits, and sums of two small numbers.

Each function returns (train, held-out), with no prompt in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, get_args

from flowgraph.errors import DataError
from nodes.data.arrow import Table
from nodes.data.order import permutation
from nodes.data.rows import Row, row, table_of

Kind = Literal["copy", "max", "sort", "reverse"]
Question = tuple[str, str]
"""A prompt's text and its ground truth."""

KINDS: tuple[str, ...] = get_args(Kind)
MAX_LENGTH = 4
"""Maximum digits in a prompt; a task has all combinations, 10 to this power."""

_SPLIT_STREAM = -1  # epochs count from 0, so that no epoch has the order of the split

_TRUTHS: Mapping[str, Callable[[str], str]] = {
    "copy": lambda digits: digits,
    "max": max,
    "sort": lambda digits: "".join(sorted(digits)),
    "reverse": lambda digits: digits[::-1],
}


def digits(kind: Kind = "copy", *, length: int = 3, seed: int = 0) -> tuple[Table, Table]:
    """Return (train, held-out) questions about all combinations of `length` digits, a fifth of them held out.

    A prompt is only the digits, since all questions of a data set are of one kind.
    Raises DataError for an unknown kind or a length outside 1 … 4.

    >>> train, held_out = digits("max")
    >>> train.num_rows, held_out.num_rows
    (800, 200)
    """
    if kind not in KINDS:
        raise DataError.unknown("kind of digits", kind, KINDS)
    if not 1 <= length <= MAX_LENGTH:
        raise DataError.out_of_range("digits", "length", length, f"1 to {MAX_LENGTH}")
    texts = [f"{number:0{length}d}" for number in range(10**length)]
    questions = [(text, _TRUTHS[kind](text)) for text in texts]
    shuffled = [questions[i] for i in permutation(seed, _SPLIT_STREAM, len(questions)).tolist()]
    held_out = len(shuffled) // 5
    return _table(shuffled[held_out:], "digits", kind, "train"), _table(shuffled[:held_out], "digits", kind, "test")


def addition(*, largest: int = 12, seed: int = 0) -> tuple[Table, Table]:
    """Return (train, held-out) questions for sums of two numbers from 1 to `largest`, an eighth of the pairs held out.

    Both orders of a pair are in the same table, so that no held-out pair is in train. Raises DataError if `largest` is
    not from 4 to 1000.

    >>> train, held_out = addition()
    >>> train.num_rows, held_out.num_rows
    (129, 15)
    >>> train["prompt"][0][0]["content"].as_py()  # doctest: +ELLIPSIS
    'What is ... + ...? Reply with the number only.'
    """
    if not 4 <= largest <= 1000:
        raise DataError.out_of_range("addition", "largest", largest, "4 to 1000")
    pairs = [(low, high) for high in range(1, largest + 1) for low in range(1, high + 1)]
    shuffled = [pairs[i] for i in permutation(seed, _SPLIT_STREAM, len(pairs)).tolist()]
    held_out = len(pairs) // 8

    def table(split_pairs: Sequence[tuple[int, int]], split: str) -> Table:
        orders = [order for low, high in split_pairs for order in dict.fromkeys([(low, high), (high, low)])]
        questions = [(f"What is {x} + {y}? Reply with the number only.", str(x + y)) for x, y in orders]
        return _table(questions, "addition", "math", split)

    return table(shuffled[held_out:], "train"), table(shuffled[:held_out], "test")


def _table(questions: Iterable[Question], source: str, ability: str, split: str) -> Table:
    rows: list[Row] = [
        row(source, text, truth, ability=ability, extra_info={"split": split, "index": index})
        for index, (text, truth) in enumerate(questions)
    ]
    return table_of(rows)
