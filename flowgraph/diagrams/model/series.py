"""A run's numbers as data: a series of points, smoothed, thinned and described in a sentence. Nothing is drawn here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.ticks import number_text

LARGEST = 1e290  # beyond it a range overflows; such a value is drawn as missing
POINTS_MAX = 600  # in a curve: about two to each unit of a panel's width

SeriesPoint = tuple[float, float | None]  # a step, and a value that may be missing


@dataclass(frozen=True)
class Series:
    """One metric of a run: (step, value) points in any order; None, NaN or an infinity is a gap."""

    name: str
    unit: str
    points: tuple[SeriesPoint, ...]
    headline: bool = False


def step_range(series: Sequence[Series]) -> tuple[float, float]:
    """Return the lowest and the highest step at which any series has a drawable value; (0, 1) if none has."""
    steps = [step for metric in series for step, value in drawable_points(metric) if value is not None]
    return (min(steps), max(steps)) if steps else (0.0, 1.0)


def drawable_points(series: Series) -> list[SeriesPoint]:
    """Return the points of a series that can be drawn, sorted by step.

    Points whose step is not finite, or is 1e290 or more in size, are left out. A value that is not finite, or that
    large, becomes None, a gap in the curve.
    """
    sound = [(step, value) for step, value in series.points if _is_drawable(step)]
    return [
        (step, value if value is not None and _is_drawable(value) else None)
        for step, value in sorted(sound, key=lambda point: point[0])
    ]


def _is_drawable(number: float) -> bool:
    return math.isfinite(number) and abs(number) < LARGEST


def series_sentence(series: Series) -> str:
    """Return a sentence about a series: its first and last value with their steps, and its minimum and maximum.

    For a single value, the sentence has only that value and its step. Without drawable values, it says so.
    """
    name = clean(series.name) + (f" ({clean(series.unit)})" if series.unit else "")
    points = [(step, value) for step, value in drawable_points(series) if value is not None]
    if not points:
        return f"{name}: no values."
    (first_step, first), (last_step, last) = points[0], points[-1]
    low, high = min(value for _, value in points), max(value for _, value in points)
    if len(points) == 1:
        return f"{name}: {number_text(last)} at step {number_text(last_step)}."
    ends = f"from {number_text(first)} at step {number_text(first_step)} to {number_text(last)}"
    return f"{name}: {ends} at step {number_text(last_step)}, between {number_text(low)} and {number_text(high)}."


def running_mean(points: Sequence[SeriesPoint]) -> list[SeriesPoint]:
    """Return a moving average of points: each value becomes the mean of the values around it.

    The window reaches over a twentieth of all points to either side, so fewer than 20 points are unchanged. Values that
    are None are not counted, and remain None.

    >>> running_mean([(0, 1.0), (1, 2.0), (2, None)])
    [(0, 1.0), (1, 2.0), (2, None)]
    """
    reach = len(points) // 20
    sums = list(accumulate((value or 0.0 for _, value in points), initial=0.0))
    counts = list(accumulate((value is not None for _, value in points), initial=0))
    smooth = list[SeriesPoint]()
    for place, (step, value) in enumerate(points):
        first, last = max(0, place - reach), min(len(points), place + reach + 1)
        mean = (sums[last] - sums[first]) / max(1, counts[last] - counts[first])
        smooth.append((step, None if value is None else mean))
    return smooth


def thin_points(points: Sequence[SeriesPoint], max_points: int = POINTS_MAX) -> Sequence[SeriesPoint]:
    """Return at most about `max_points` of the points: the lowest and the highest of each group of neighbours.

    If there are no more than `max_points` points, all are returned. A group without values has only its first point.

    >>> thin_points([(0, 1.0), (1, 5.0), (2, 3.0), (3, 0.0)], 4)
    [(0, 1.0), (1, 5.0), (2, 3.0), (3, 0.0)]
    >>> thin_points([(0, 1.0), (1, 5.0), (2, 3.0), (3, 0.0)], 2)
    [(1, 5.0), (3, 0.0)]
    """
    if len(points) <= max_points:
        return points
    size, thin = -(-2 * len(points) // max_points), list[SeriesPoint]()
    for start in range(0, len(points), size):
        run = points[start : start + size]
        values = [(value, step) for step, value in run if value is not None]
        extremes = {(step, value) for value, step in (min(values), max(values))} if values else {run[0]}
        thin += sorted(extremes)
    return thin
