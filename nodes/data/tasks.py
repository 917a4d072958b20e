"""Seeded tasks that need no download: questions on digits, and sums of two small numbers.

Every maker returns (train, held-out), and no held-out prompt is among those of train.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

from flowgraph.errors import DataError
from nodes.data.arrow import Table
from nodes.data.order import permutation
from nodes.data.rows import Row, row, table_of

Kind = Literal["copy", "max", "sort", "reverse"]
Question = tuple[str, str]
"""A prompt's text and its ground truth."""

KINDS: tuple[str, ...] = get_args(Kind)
LONGEST = 4
"""Digits in a prompt, at most: all combinations are made, 10 to this power."""

_SPLIT_STREAM = -1  # epochs count from 0, so that no order of an epoch is the order of the split

_TRUTHS: Mapping[str, Callable[[str], str]] = {
    "copy": lambda digits: digits,
    "max": max,
    "sort": lambda digits: "".join(sorted(digits)),
    "reverse": lambda digits: digits[::-1],
}


def digits(kind: Kind = "copy", *, length: int = 3, seed: int = 0) -> tuple[Table, Table]:
    """Ask for a function of every combination of `length` digits, a fifth of them held out.

    The prompt is the digits and nothing else: one data set has one kind.
    Raises DataError for an unknown kind or a length outside 1 … 4.

    >>> train, held_out = digits("max")
    >>> train.num_rows, held_out.num_rows
    (800, 200)
    """
    if kind not in KINDS:
        raise DataError.unknown("kind of digits", kind, KINDS)
    if not 1 <= length <= LONGEST:
        raise DataError.out_of_range("digits", "length", length, f"1 to {LONGEST}")
    texts = [f"{number:0{length}d}" for number in range(10**length)]
    questions = [(text, _TRUTHS[kind](text)) for text in texts]
    held_out = len(texts) // 5
    return _split(questions, "digits", ability=kind, train=len(texts) - held_out, held_out=held_out, seed=seed)


def addition(*, largest: int = 12, seed: int = 0) -> tuple[Table, Table]:
    """Ask for sums of two numbers from 1 to `largest`, in both orders; an eighth of the pairs is held out.

    A pair and the same turned round are on one side, so that no held-out sum was trained on.
    Raises DataError where `largest` gives too few pairs to hold any out, or too many to be a small task.

    >>> train, held_out = addition()
    >>> train.num_rows, held_out.num_rows
    (129, 15)
    >>> train["prompt"][0][0]["content"].as_py()  # doctest: +ELLIPSIS
    'What is ... + ...? Reply with the number only.'
    """
    if not 4 <= largest <= 1000:
        raise DataError.out_of_range("addition", "largest", largest, "4 to 1000")
    pairs = [(low, high) for high in range(1, largest + 1) for low in range(1, high + 1)]
    order = permutation(seed, _SPLIT_STREAM, len(pairs)).tolist()
    cut = len(pairs) // 8
    parts = {"test": order[:cut], "train": order[cut:]}
    asked = {split: [each for place in places for each in _both_ways(*pairs[place])] for split, places in parts.items()}
    return _table(asked["train"], "addition", "math", "train"), _table(asked["test"], "addition", "math", "test")


def _both_ways(low: int, high: int) -> list[Question]:
    turns = dict.fromkeys([(low, high), (high, low)])
    return [(f"What is {x} + {y}? Reply with the number only.", str(x + y)) for x, y in turns]


def _split(
    questions: Sequence[Question], source: str, *, ability: str, train: int, held_out: int, seed: int
) -> tuple[Table, Table]:
    order = permutation(seed, _SPLIT_STREAM, len(questions)).tolist()
    parts = {"train": order[held_out : held_out + train], "test": order[:held_out]}
    made = {split: [questions[place] for place in places] for split, places in parts.items()}
    return _table(made["train"], source, ability, "train"), _table(made["test"], source, ability, "test")


def _table(questions: Sequence[Question], source: str, ability: str, split: str) -> Table:
    rows: list[Row] = [
        row(source, text, truth, ability=ability, extra_info={"split": split, "index": index})
        for index, (text, truth) in enumerate(questions)
    ]
    return table_of(rows)
