"""Rectangles, scales and lengths, in units of the picture (CSS pixels)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

WIDTH, MARGIN, TITLE_HEIGHT = 960.0, 16.0, 44.0

Point = tuple[float, float]


@dataclass(frozen=True)
class Rect:
    """A rectangle by its upper left corner, its width and its height, in pixels; y grows downwards."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Return the x coordinate of the right edge."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """Return the y coordinate of the bottom edge."""
        return self.top + self.height

    @property
    def middle(self) -> float:
        """Return the y coordinate of the centre."""
        return self.top + self.height / 2

    @property
    def centre(self) -> float:
        """Return the x coordinate of the centre."""
        return self.left + self.width / 2

    def meets(self, area: Rect) -> bool:
        """Return whether two rectangles overlap; touching edges are not an overlap.

        >>> Rect(0, 0, 10, 10).meets(Rect(5, 5, 10, 10)), Rect(0, 0, 10, 10).meets(Rect(10, 0, 10, 10))
        (True, False)
        """
        across = self.left < area.right and area.left < self.right
        return across and self.top < area.bottom and area.top < self.bottom

    def holds(self, area: Rect) -> bool:
        """Return whether `area` is inside this rectangle; edges may touch."""
        across = self.left <= area.left and area.right <= self.right
        return across and self.top <= area.top and area.bottom <= self.bottom


@dataclass(frozen=True)
class LinearScale:
    """The scale of an axis: numbers from `low` to `high` lie at coordinates from `start` to `end`, in pixels."""

    start: float
    end: float
    low: float
    high: float

    def at(self, number: float) -> float:
        """Return the coordinate of a number: `low` is at `start` and `high` at `end`.

        Numbers outside of that range are placed beyond the ends. Raises ZeroDivisionError if `low` equals `high`.

        >>> LinearScale(100, 0, 0, 5).at(1)
        80.0
        """
        return self.start + (self.end - self.start) * (number - self.low) / (self.high - self.low)


def short(length: float) -> str:
    """Return a length as text with at most two decimals and no trailing zeros.

    >>> short(12.0), short(1234.567)
    ('12', '1234.57')
    """
    return f"{length:.2f}".rstrip("0").rstrip(".") if length else "0"


def polyline(points: Iterable[Point]) -> str:
    """Return the data of an SVG path that connects the points by straight lines.

    >>> polyline([(1.0, 2.0), (3.25, 4.0)])
    'M1 2L3.25 4'
    """
    return "M" + "L".join(f"{short(x)} {short(y)}" for x, y in points)


def shares(weights: Sequence[float], room: float, minimum: float) -> tuple[float, ...]:
    """Return `room` divided in proportion to `weights`, with at least `minimum` for each weight.

    If `room` is too small for these minimums, the shares are equal. If all weights are 0, each share is the minimum.

    >>> shares([1, 1, 2], 100, 10), shares([1, 99], 100, 20.0), shares([1, 1], 10, 20)
    ((25.0, 25.0, 50.0), (20.0, 80.0), (5.0, 5.0))
    """
    floor = min(minimum, room / max(len(weights), 1))
    raised = set[int]()  # the places of weights whose share would be below the minimum
    while True:
        total = sum(weight for place, weight in enumerate(weights) if place not in raised)
        rest = room - floor * len(raised)
        widths = [
            floor if place in raised or not total else rest * weight / total for place, weight in enumerate(weights)
        ]
        below = {place for place, width in enumerate(widths) if width < floor * (1 - 1e-9)}
        if not below:
            return tuple(widths)
        raised |= below
