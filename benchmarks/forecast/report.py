"""What a forecast is held against: measured cases beside their forecast and a null model, and the errors of many.

Errors carry their sign: (forecast - measured) / measured. Not here: how a table's rows become cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.forecast.cells import Number

Row = Mapping[str, str]


@dataclass(frozen=True)
class Case:
    """One measured figure, with its forecast and that of a null model; None and `why` where there is no forecast."""

    label: str
    measured: float
    forecast: float | None
    null: float | None = None
    group: str = ""
    why: str = ""


@dataclass(frozen=True)
class View:
    """One question put to a table: what is compared, its unit, and the cases."""

    name: str
    unit: str
    cases: Callable[[Sequence[Row]], Iterable[Case]]


@dataclass(frozen=True)
class Table:
    """A format of published rows: the columns that tell it from others, and the questions that it answers.

    `numbers` are the cells that must be numbers for a row to be read.
    """

    name: str
    columns: frozenset[str]
    views: tuple[View, ...]
    numbers: Mapping[str, Number] = field(default_factory=dict)


@dataclass(frozen=True)
class Errors:
    """Errors of many forecasts: `skipped` says how many rows have none, by reason."""

    count: int
    bias: float
    median: float
    mean: float
    p90: float
    worst: float
    spearman: float | None
    skipped: Mapping[str, int] = field(default_factory=dict[str, int])


def errors(cases: Sequence[Case], *, null: bool = False) -> Errors | None:
    """Sum up the errors of the forecasts, or of the null model on the same cases; None if there is none."""
    told = [case for case in cases if case.forecast is not None]
    pairs = [(case.measured, case.null if null else case.forecast) for case in told]
    known = [(measured, forecast) for measured, forecast in pairs if forecast is not None and measured]
    if not known:
        return None
    signed = [(forecast - measured) / measured for measured, forecast in known]
    sizes = sorted(abs(each) for each in signed)
    skipped = dict[str, int]()
    for case in cases:
        if case.forecast is None:
            skipped[case.why or "no forecast"] = skipped.get(case.why or "no forecast", 0) + 1
    return Errors(
        count=len(known),
        bias=median(signed),
        median=median(sizes),
        mean=mean(sizes),
        p90=sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))],
        worst=max(signed, key=abs),
        spearman=spearman(known),
        skipped=skipped,
    )


def spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the correlation of ranks, equal values sharing theirs; None for fewer than three pairs or equal values.

    >>> spearman([(1.0, 10.0), (2.0, 30.0), (3.0, 20.0)])
    0.5
    """
    if len(pairs) < 3:
        return None
    left, right = (_ranks([pair[side] for pair in pairs]) for side in (0, 1))
    middle = mean(left)
    spread = [sum((each - middle) ** 2 for each in side) for side in (left, right)]
    if not all(spread):
        return None
    both = sum((a - middle) * (b - middle) for a, b in zip(left, right, strict=True))
    return float(both / (spread[0] * spread[1]) ** 0.5)


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda place: values[place])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for place in order[start : end + 1]:
            ranks[place] = (start + end) / 2
        start = end + 1
    return ranks


def view_text(view: View, cases: Sequence[Case]) -> str:
    """Write the errors of a view: all cases, each group, and the null model beside both."""
    lines = [f"    {view.name} [{view.unit}]"]
    groups = list(dict.fromkeys(case.group for case in cases))
    parts = [("all", list(cases))] + [
        (each, [c for c in cases if c.group == each]) for each in groups if len(groups) > 1
    ]
    for name, part in parts:
        ours, null = errors(part), errors(part, null=True)
        lines.append(f"      {name}: {_line(ours)}" if ours is not None else f"      {name}: no forecast")
        if null is not None:
            lines.append(f"      {'':{len(name)}}  null model: {_line(null)}")
    for why, count in _skipped(cases).items():
        lines.append(f"      without a forecast: {count} ({why})")
    return "\n".join(lines)


def _skipped(cases: Iterable[Case]) -> dict[str, int]:
    found = dict[str, int]()
    for case in cases:
        if case.forecast is None:
            found[case.why or "no reason given"] = found.get(case.why or "no reason given", 0) + 1
    return found


def _line(found: Errors) -> str:
    rank = "" if found.spearman is None else f", Spearman {found.spearman:.3f}"
    return (
        f"{found.count} rows, signed median {found.bias:+.1%}, median {found.median:.1%}, mean {found.mean:.1%}, "
        f"p90 {found.p90:.1%}, worst {found.worst:+.0%}{rank}"
    )
