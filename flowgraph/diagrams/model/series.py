"""A run's numbers as data: a series of points, smoothed, thinned and told in a sentence. Nothing is drawn here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.ticks import number_text

LARGEST = 1e290  # beyond it a range overflows; such a value is drawn as missing
POINTS_AT_MOST = 600  # in a curve: about two to each unit of a panel's width

Point = tuple[float, float | None]  # a step, and a value that may be missing


@dataclass(frozen=True)
class Series:
    """One metric of a run: (step, value) points in any order; None, NaN or an infinity is a gap."""

    name: str
    unit: str
    points: tuple[Point, ...]
    headline: bool = False


def step_range(series: Sequence[Series]) -> tuple[float, float]:
    """Give the first and last step of all series; 0 and 1 without any."""
    steps = [step for each in series for step, value in known(each) if value is not None]
    return (min(steps), max(steps)) if steps else (0.0, 1.0)


def known(series: Series) -> list[Point]:
    """Give a series' points by step; a value that cannot be drawn is None, a step that cannot be is left out."""
    sound = [(step, value) for step, value in series.points if math.isfinite(step) and abs(step) < LARGEST]
    return [(step, value if _drawable(value) else None) for step, value in sorted(sound, key=lambda point: point[0])]


def _drawable(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and abs(value) < LARGEST


def sentence(series: Series, points: Sequence[tuple[float, float]]) -> str:
    """Say in a sentence what a panel shows, for those who do not see it."""
    name = clean(series.name) + (f" ({clean(series.unit)})" if series.unit else "")
    if not points:
        return f"{name}: no values."
    (first_step, first), (last_step, last) = points[0], points[-1]
    low, high = min(value for _, value in points), max(value for _, value in points)
    if len(points) == 1:
        return f"{name}: {number_text(last)} at step {number_text(last_step)}."
    ends = f"from {number_text(first)} at step {number_text(first_step)} to {number_text(last)}"
    return f"{name}: {ends} at step {number_text(last_step)}, between {number_text(low)} and {number_text(high)}."


def running_mean(points: Sequence[Point]) -> list[Point]:
    """Smooth a curve: each value becomes the mean of those around it, a tenth of the curve in all; gaps stay.

    >>> running_mean([(0, 1.0), (1, 2.0), (2, None)])
    [(0, 1.0), (1, 2.0), (2, None)]
    """
    reach = len(points) // 20
    sums = list(accumulate((value or 0.0 for _, value in points), initial=0.0))
    counts = list(accumulate((value is not None for _, value in points), initial=0))
    smooth = list[Point]()
    for place, (step, value) in enumerate(points):
        first, last = max(0, place - reach), min(len(points), place + reach + 1)
        mean = (sums[last] - sums[first]) / max(1, counts[last] - counts[first])
        smooth.append((step, None if value is None else mean))
    return smooth


def thinned(points: Sequence[Point], at_most: int = POINTS_AT_MOST) -> Sequence[Point]:
    """Leave out points that a narrow panel cannot show: of each run of neighbours the lowest and highest stay.

    >>> thinned([(0, 1.0), (1, 5.0), (2, 3.0), (3, 0.0)], 4)
    [(0, 1.0), (1, 5.0), (2, 3.0), (3, 0.0)]
    >>> thinned([(0, 1.0), (1, 5.0), (2, 3.0), (3, 0.0)], 2)
    [(1, 5.0), (3, 0.0)]
    """
    if len(points) <= at_most:
        return points
    size = -(-2 * len(points) // at_most)
    return [kept for start in range(0, len(points), size) for kept in _ends(points[start : start + size])]


def _ends(run: Sequence[Point]) -> list[Point]:
    """Give the lowest and the highest point of a run, by step; the first if no value is there."""
    drawn = [(value, step) for step, value in run if value is not None]
    return sorted({(step, value) for value, step in (min(drawn), max(drawn))}) if drawn else [run[0]]
