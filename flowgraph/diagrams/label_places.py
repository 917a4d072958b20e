"""Where the labels of arrows stand: where Graphviz kept room if that is beside the arrow, else on the arrow itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import hypot

from flowgraph.diagrams.geometry import Rect

Place = tuple[float, float]

NEAR_PX = 20.0  # from a label to its arrow: farther, it seems to be another's
SAMPLES = 8  # of each cubic curve
GAP_PX = 2.0  # between a label and what it must not cover


@dataclass(frozen=True)
class Label:
    """A label to be placed: its size, the curves of its arrow, and the middle of the room that was kept for it."""

    width: float
    height: float
    points: tuple[Place, ...]
    kept: Place


def label_places(labels: Sequence[Label], boxes: Sequence[Rect], page: Rect) -> list[Place]:
    """Give the middle of each label, one after the other: beside its arrow, and on no box or earlier label if it can.

    A label whose kept room is far from its arrow goes to the free place on the arrow, and on the page, that is nearest
    to the arrow's middle.
    """
    kept = [_at(each, each.kept) for each in labels]
    near = [is_near(at, each.points) for at, each in zip(kept, labels, strict=True)]
    taken = [*boxes, *(at for at, stays in zip(kept, near, strict=True) if stays)]
    for place, stays in enumerate(near):
        if not stays:
            kept[place] = _free(labels[place], taken, page) or kept[place]
            taken.append(kept[place])
    return [(at.centre, at.middle) for at in kept]


def _free(label: Label, taken: Sequence[Rect], page: Rect) -> Rect | None:
    """Give the free place on an arrow that is nearest to its middle."""
    there = (at for at in _candidates(label) if page.holds(at))
    return next((at for at in there if not any(crowded(at, other) for other in taken)), None)


def is_near(label: Rect, points: Sequence[Place]) -> bool:
    """Say whether a label stands beside its arrow."""
    return min(away_px(label, point) for point in sampled(points)) <= NEAR_PX


def crowded(one: Rect, other: Rect) -> bool:
    """Say whether there is less than a gap between two rectangles.

    >>> crowded(Rect(0, 0, 9, 9), Rect(10, 0, 9, 9)), crowded(Rect(0, 0, 9, 9), Rect(12, 0, 9, 9))
    (True, False)
    """
    across = min(one.right, other.right) - max(one.left, other.left)
    return across > -GAP_PX and min(one.bottom, other.bottom) - max(one.top, other.top) > -GAP_PX


def away_px(at: Rect, point: Place) -> float:
    """Give how far a point is from the nearest side of a rectangle; 0 inside.

    >>> away_px(Rect(0, 0, 10, 10), (13, 14)), away_px(Rect(0, 0, 10, 10), (5, 5))
    (5.0, 0.0)
    """
    across = max(at.left - point[0], 0.0, point[0] - at.right)
    return hypot(across, max(at.top - point[1], 0.0, point[1] - at.bottom))


def _candidates(label: Label) -> Iterator[Rect]:
    """Give places on an arrow, the middle first, then outwards to either end; and then beside it."""
    line = list(sampled(label.points))
    middle = len(line) // 2
    places = [line[each] for each in sorted(range(1, len(line) - 1), key=lambda each: abs(each - middle))]
    beside = label.width / 2 + GAP_PX
    for aside in (0.0, beside, -beside):
        yield from (_at(label, (x + aside, y)) for x, y in places)


def _at(label: Label, middle: Place) -> Rect:
    return Rect(middle[0] - label.width / 2, middle[1] - label.height / 2, label.width, label.height)


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
