"""Where the labels of arrows stand: where Graphviz kept room if that is beside the arrow, else on the arrow itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import dist

Place = tuple[float, float]

NEAR_PX = 14.0  # from a label to its arrow: farther, it seems to be another's
SAMPLES = 8  # of each cubic curve
GAP_PX = 2.0  # between a label and what it must not cover


@dataclass(frozen=True)
class Rectangle:
    """A place on the picture, in units of it (CSS pixels), from its top left corner."""

    left: float
    top: float
    width: float
    height: float

    @property
    def middle(self) -> Place:
        """Give its middle."""
        return self.left + self.width / 2, self.top + self.height / 2

    def covers(self, other: Rectangle, gap_px: float = 0.0) -> bool:
        """Say whether another place is less than a gap away from this one.

        >>> Rectangle(0, 0, 9, 9).covers(Rectangle(8, 8, 9, 9)), Rectangle(0, 0, 9, 9).covers(Rectangle(10, 0, 9, 9))
        (True, False)
        """
        across = min(self.left + self.width, other.left + other.width) - max(self.left, other.left)
        down = min(self.top + self.height, other.top + other.height) - max(self.top, other.top)
        return across > -gap_px and down > -gap_px

    def away_px(self, point: Place) -> float:
        """Give how far a point is from its nearest side; 0 inside.

        >>> Rectangle(0, 0, 10, 10).away_px((13, 14)), Rectangle(0, 0, 10, 10).away_px((5, 5))
        (5.0, 0.0)
        """
        across = max(self.left - point[0], 0.0, point[0] - self.left - self.width)
        down = max(self.top - point[1], 0.0, point[1] - self.top - self.height)
        return dist((across, down), (0.0, 0.0))


@dataclass(frozen=True)
class Label:
    """A label to be placed: its size, the curves of its arrow, and the middle of the room that was kept for it."""

    width: float
    height: float
    points: tuple[Place, ...]
    kept: Place


def label_places(labels: Sequence[Label], boxes: Sequence[Rectangle]) -> list[Place]:
    """Give the middle of each label, one after the other: beside its arrow, and on no box or earlier label if it can.

    A label whose kept room is far from its arrow goes to the free place on the arrow that is nearest to its middle.
    """
    kept = [_at(each, each.kept) for each in labels]
    near = [is_near(at, each.points) for at, each in zip(kept, labels, strict=True)]
    taken = [*boxes, *(at for at, stays in zip(kept, near, strict=True) if stays)]
    for place, stays in enumerate(near):
        if not stays:
            kept[place] = _free(labels[place], taken) or kept[place]
            taken.append(kept[place])
    return [at.middle for at in kept]


def _free(label: Label, taken: Sequence[Rectangle]) -> Rectangle | None:
    """Give the free place on an arrow that is nearest to its middle."""
    return next((at for at in _candidates(label) if not any(at.covers(other, GAP_PX) for other in taken)), None)


def is_near(label: Rectangle, points: Sequence[Place]) -> bool:
    """Say whether a label stands beside its arrow."""
    return min(map(label.away_px, sampled(points))) <= NEAR_PX


def _candidates(label: Label) -> Iterator[Rectangle]:
    """Give places on an arrow, the middle first, then outwards to either end."""
    line = list(sampled(label.points))
    middle = len(line) // 2
    for place in sorted(range(1, len(line) - 1), key=lambda each: abs(each - middle)):
        yield _at(label, line[place])


def _at(label: Label, middle: Place) -> Rectangle:
    return Rectangle(middle[0] - label.width / 2, middle[1] - label.height / 2, label.width, label.height)


def sampled(points: Sequence[Place]) -> Iterator[Place]:
    """Give points along cubic curves: a first point, then three for each.

    >>> list(sampled([(0, 0), (0, 2), (0, 4), (0, 6)]))[::4]
    [(0.0, 0.0), (0.0, 3.0), (0.0, 6.0)]
    """
    yield float(points[0][0]), float(points[0][1])
    for start in range(0, len(points) - 3, 3):
        for step in range(1, SAMPLES + 1):
            yield _on_cubic(points[start : start + 4], step / SAMPLES)


def _on_cubic(corners: Sequence[Place], share: float) -> Place:
    rest = 1 - share
    weights = rest**3, 3 * rest**2 * share, 3 * rest * share**2, share**3
    x = sum(weight * corner[0] for weight, corner in zip(weights, corners, strict=True))
    return x, sum(weight * corner[1] for weight, corner in zip(weights, corners, strict=True))
