"""Where the labels of arrows stand: where Graphviz kept room if that is beside the arrow, else on the arrow itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import hypot

from flowgraph.diagrams.write.svg.geometry import Rect

Place = tuple[float, float]

NEAR_PX = 20.0  # from a label to its arrow: farther, it seems to be another's
SAMPLES = 8  # of each cubic curve
GAP_PX = 2.0  # between a label and what it must not cover
BAND_PX = 60.0  # about a label's height


@dataclass(frozen=True)
class Label:
    """A label to be placed: its size, the curves of its arrow, and the middle of the room that was kept, if any was."""

    width: float
    height: float
    points: tuple[Place, ...]
    kept: Place | None


def label_places(labels: Sequence[Label], others: Sequence[Rect], width: float) -> list[Place | None]:
    """Give the middle of each label, one after the other: at its arrow, inside the picture's width, on nothing else.

    A label whose kept room is far from its arrow, or on something, goes to the free place at the arrow that is nearest
    to the arrow's middle; where there is none it is nowhere.
    """
    taken, found = _OccupiedAreas(others, width), list[Rect | None]()
    for label in labels:
        room = None if label.kept is None else _at(label, label.kept)
        found.append(room if room and is_near(room, label.points) and not taken.crowds(room) else None)
        taken.add(found[-1])
    for place, label in enumerate(labels):
        if found[place] is None:
            found[place] = _free(label, taken)
            taken.add(found[place])
    return [None if at is None else (at.centre, at.middle) for at in found]


class _OccupiedAreas:
    """Rectangles by the bands of the picture that they reach into, so that only those near a place are looked at."""

    def __init__(self, rects: Sequence[Rect], width: float) -> None:
        self._width, self._bands = width, dict[int, list[Rect]]()
        for rect in rects:
            self.add(rect)

    def add(self, rect: Rect | None) -> None:
        if rect is not None:
            for band in _bands(rect):
                self._bands.setdefault(band, []).append(rect)

    def crowds(self, at: Rect) -> bool:
        if at.left < 0 or at.right > self._width:
            return True
        return any(crowded(at, other) for band in _bands(at) for other in self._bands.get(band, ()))


def _bands(at: Rect) -> range:
    return range(int((at.top - GAP_PX) // BAND_PX), int((at.bottom + GAP_PX) // BAND_PX) + 1)


def _free(label: Label, taken: _OccupiedAreas) -> Rect | None:
    """Give the free place on an arrow that is nearest to its middle."""
    return next((at for at in _candidates(label) if not taken.crowds(at)), None)


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
    """Give places on an arrow, the middle first, then outwards to either end; then such right and left of it."""
    line = list(sampled(label.points))
    middle = len(line) // 2
    aside, far = label.width / 2 + GAP_PX, label.width / 2 + NEAR_PX
    for across in (0.0, aside, -aside, far, -far):
        for place in sorted(range(1, len(line) - 1), key=lambda each: abs(each - middle)):
            x, y = line[place]
            yield _at(label, (x + across, y))


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
