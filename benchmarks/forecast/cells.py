"""Which rows of a table can be read: the numbers that each format needs, and a sentence for each row that has others.

A row is named by its place below the header, from 1. Not here: what the numbers mean (the readers of each table).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from benchmarks.forecast.report import Case, Row, View
from flowgraph.errors import FlowError

FAILURES = (FlowError, ValueError, ArithmeticError, LookupError, TypeError)
"""What a reader raises for cells that have the right form and still say nothing that can be."""


@dataclass(frozen=True)
class Number:
    """What a cell may be: a number that is `minimum` or more, above 0 if that is None, or empty if it is `optional`.

    `words` is a pattern of texts that a format writes in place of a number, such as `n/a`.
    """

    whole: bool = False
    minimum: float | None = None
    optional: bool = False
    words: str = ""

    def problem(self, cell: str) -> str:
        """Return what is wrong with a cell, empty if nothing is.

        >>> [Number(whole=True, minimum=1).problem(each) for each in ("8", "8.0", "eE", "0", "2.5")]
        ['', '', 'no number', 'less than 1', 'no whole number']
        """
        text = cell.strip()
        if (not text and self.optional) or (text and self.words and re.fullmatch(self.words, text, re.IGNORECASE)):
            return ""
        if not text:
            return "empty"
        if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII) or not isfinite(float(text)):
            return "no number"
        if self.whole and not float(text).is_integer():
            return "no whole number"
        if self.minimum is None:
            return "" if float(text) > 0 else "not above 0"
        return "" if float(text) >= self.minimum else f"less than {self.minimum:g}"

    def plain(self, cell: str) -> str:
        """Return a cell without spaces around it, and a whole number without a fraction."""
        text = cell.strip()
        return text.partition(".")[0] if self.whole and re.fullmatch(r"\d+\.0*", text) else text


COUNT = Number(whole=True, minimum=1)
COUNT_OR_EMPTY = Number(whole=True, minimum=1, optional=True)
AMOUNT = Number()
AMOUNT_OR_EMPTY = Number(optional=True)
ANY_OR_EMPTY = Number(minimum=0, optional=True)


def columns(number: Number, *names: str) -> dict[str, Number]:
    """Return the same demand for several columns."""
    return dict.fromkeys(names, number)


@dataclass(frozen=True)
class Unread:
    """A row that is left out: its place below the header, and why."""

    row: int
    why: str

    def __str__(self) -> str:
        return f"row {self.row}: {self.why}"


@dataclass(frozen=True)
class Numbered:
    """A row with its place below the header."""

    place: int
    row: Row


def read_file(path: Path) -> tuple[list[Numbered], list[Unread]]:
    """Return the rows of a CSV file, and those that have more cells than the header; missing cells are empty.

    Raises ValueError for a file that is no text in UTF-8 or no CSV.
    """
    rows, unread = list[Numbered](), list[Unread]()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="")
            for place, row in enumerate(reader, start=1):
                if None in row:
                    unread.append(Unread(place, "it has more cells than the header"))
                else:
                    rows.append(Numbered(place, {name.strip(): cell for name, cell in row.items()}))
    except UnicodeDecodeError:
        raise ValueError("it is no text in UTF-8") from None
    except csv.Error as error:
        raise ValueError(f"it is no CSV: {error}") from None
    return rows, unread


def readable(rows: Iterable[Numbered], numbers: Mapping[str, Number]) -> tuple[list[Numbered], list[Unread]]:
    """Return the rows whose numbers are as a format needs them, and the others with the first cell that is not."""
    fine, unread = list[Numbered](), list[Unread]()
    for each in rows:
        why = _problem(each.row, numbers)
        if why:
            unread.append(Unread(each.place, why))
            continue
        plain = {name: number.plain(each.row[name]) for name, number in numbers.items() if name in each.row}
        fine.append(Numbered(each.place, {**each.row, **plain}))
    return fine, unread


def _problem(row: Row, numbers: Mapping[str, Number]) -> str:
    for name, number in numbers.items():
        problem = number.problem(row.get(name, ""))
        if problem == "empty":
            return f"{name} is empty"
        if problem:
            return f"{name} is `{row[name].strip()[:40]}`" + ("" if problem == "no number" else f", {problem}")
    return ""


def cases_of(view: View, rows: Sequence[Numbered]) -> tuple[list[Case], list[Unread]]:
    """Return the cases of a view, and the rows that it cannot be asked of: those that raise by themselves.

    Raises what the view raises where no single row is the cause.
    """
    return guarded(lambda some: list(view.cases([each.row for each in some])), rows)


def guarded(
    cases: Callable[[Sequence[Numbered]], list[Case]], rows: Sequence[Numbered]
) -> tuple[list[Case], list[Unread]]:
    """Return what `cases` makes of the rows, and the rows that raise by themselves, which are left out."""
    try:
        return cases(rows), []
    except FAILURES:
        unread = [Unread(each.place, why) for each in rows if (why := _failure(cases, each))]
        if not unread:
            raise
        places = {each.row for each in unread}
        return cases([each for each in rows if each.place not in places]), unread


def _failure(cases: Callable[[Sequence[Numbered]], list[Case]], row: Numbered) -> str:
    try:
        cases([row])
    except FAILURES as error:
        return (str(error).splitlines() or [""])[0] or type(error).__name__
    return ""


def unread_text(unread: Sequence[Unread]) -> list[str]:
    """Return a line that counts the rows that were not read, and one for each; nothing if there are none."""
    if not unread:
        return []
    return [f"{len(unread)} row{'s' * (len(unread) > 1)} not read:", *(f"  {each}" for each in unread)]
