"""Tables that bound a figure instead of giving it: a confidence interval, or what a test suite lets a metric be.

A measured column `NAME` may come as `NAME_ci_low` and `NAME_ci_high`, or as `NAME_lower` and `NAME_upper`; the value of
a table of metrics as `lower` and `upper`. One of the two may be empty, as in a suite that only asks for `step < 32`.
A forecast between the bounds has no error; one outside is held against the bound that it misses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from benchmarks.forecast.cells import AMOUNT_OR_EMPTY, Numbered, Unread, guarded, readable
from benchmarks.forecast.report import Case, Table, View

ENDINGS = (("_ci_low", "_ci_high"), ("_lower", "_upper"))
VALUE = "value"  # the column of a table of metrics whose bounds are `lower` and `upper`


@dataclass(frozen=True)
class Bounded:
    """A column of a table that a file gives as two: its name, and those of its bounds."""

    name: str
    low: str
    high: str


def bounded_column(header: Iterable[str], table: Table) -> Bounded | None:
    """Return the one column of a format that a header has as bounds only; None if it has the column, or no bounds."""
    names = set(header)
    missing = [name for name in table.columns if name not in names]
    if len(missing) != 1:
        return None
    (name,) = missing
    pairs = [(f"{name}{low}", f"{name}{high}") for low, high in ENDINGS]
    pairs += [("lower", "upper")] if name == VALUE else []
    return next((Bounded(name, low, high) for low, high in pairs if {low, high} <= names), None)


def bounded_rows(rows: Sequence[Numbered], column: Bounded) -> tuple[list[Numbered], list[Unread]]:
    """Return the rows that have a bound at least, and the others with the reason."""
    fine, unread = readable(rows, {column.low: AMOUNT_OR_EMPTY, column.high: AMOUNT_OR_EMPTY})
    kept = list[Numbered]()
    for each in fine:
        low, high = bounds_of(each, column)
        if low == 0 and high == inf:
            unread.append(Unread(each.place, f"{column.low} and {column.high} are empty"))
        elif low > high:
            unread.append(Unread(each.place, f"{column.low} is above {column.high}"))
        else:
            kept.append(replace(each, row={**each.row, column.name: f"{high if high < inf else low!r}"}))
    return kept, sorted(unread, key=lambda each: each.row)


def bounds_of(row: Numbered, column: Bounded) -> tuple[float, float]:
    """Return the bounds of a row's figure: 0 and infinity where it has none."""
    low, high = row.row[column.low], row.row[column.high]
    return float(low) if low else 0.0, float(high) if high else inf


def bounded_cases(view: View, rows: Sequence[Numbered], column: Bounded) -> tuple[list[Case], list[Unread]]:
    """Return the cases of a view against bounds, row by row and without a null model; and the rows that raise."""

    def cases(some: Sequence[Numbered]) -> list[Case]:
        return [case for each in some for case in _cases(view, each, bounds_of(each, column), column.name)]

    return guarded(cases, rows)


def _cases(view: View, row: Numbered, bounds: tuple[float, float], name: str) -> list[Case]:
    """Return the cases of one row; a figure that falls as the column rises, as seconds by throughput, swaps bounds."""
    first, second = (_at(view, row.row, name, float(row.row[name]) * times) for times in (1, 2))
    found = list[Case]()
    for one, other in zip(first, second, strict=True):
        if one.forecast is None or one.measured <= 0:
            found.append(replace(one, null=None))
            continue
        rises = other.measured > one.measured
        low, high = (_moved(one.measured, float(row.row[name]), bound, rises=rises) for bound in bounds)
        nearest = min(max(one.forecast, min(low, high)), max(low, high))
        found.append(replace(one, measured=nearest, null=None))
    return found


def _moved(measured: float, cell: float, bound: float, *, rises: bool) -> float:
    """Return the figure that a bound of the column makes, in proportion to it or to its inverse."""
    if rises:
        return measured * bound / cell
    return measured * cell / bound if bound else inf


def _at(view: View, row: Mapping[str, str], name: str, value: float) -> list[Case]:
    return list(view.cases([{**row, name: f"{value!r}"}]))


def within_text(cases: Sequence[Case]) -> str:
    """Return how many forecasts lie between their bounds."""
    known = [case for case in cases if case.forecast is not None]
    return f"between the bounds: {sum(case.forecast == case.measured for case in known)} of {len(known)}"
