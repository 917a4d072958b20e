"""Where the labels of arrows stand: where Graphviz kept room if that is near the arrow, else on the arrow itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import hypot
from operator import mul

from flowgraph.diagrams.write.svg.geometry import Point, Rect

NEAR_PX = 20.0  # from a label to its arrow: farther, it seems to belong to another
SAMPLES = 8  # of each cubic curve
GAP_PX = 2.0  # between a label and what it must not cover
BAND_PX = 60.0  # about a label's height


@dataclass(frozen=True)
class Label:
    """The label of an arrow: its width and height in pixels, and the control points of its arrow's cubic curves.

    `room` is the centre of the space that Graphviz reserved for the label, if any.
    """

    width: float
    height: float
    points: tuple[Point, ...]
    room: Point | None

    def at(self, middle: Point) -> Rect:
        """Return the label's rectangle, centred on `middle`."""
        return Rect(middle[0] - self.width / 2, middle[1] - self.height / 2, self.width, self.height)


def label_places(labels: Sequence[Label], occupied: Sequence[Rect], width: float) -> list[Point | None]:
    """Return the centre of each arrow label, near its arrow and without overlaps; None for a label that fits nowhere.

    `occupied` are areas that no label may cover, and `width` is the width of the picture; lengths are in pixels. A
    label goes to its `room` if that is near the arrow and free. Otherwise it goes to a free place on the arrow, or else
    at the arrow's side, as near to the middle of the arrow as possible.
    """
    areas, places = _OccupiedAreas(occupied, width), list[Rect | None]()
    for label in labels:
        room = None if label.room is None else label.at(label.room)
        fits = room is not None and is_near(room, label.points) and not areas.crowds(room)
        places.append(areas.add(room) if fits and room is not None else None)
    for place, label in enumerate(labels):
        if places[place] is None:
            # Places on the arrow, the middle first, then outwards to either end; then places right and left of it.
            points = list(curve_points(label.points))
            middle = len(points) // 2
            outwards = sorted(range(1, len(points) - 1), key=lambda index: abs(index - middle))
            aside, distant = label.width / 2 + GAP_PX, label.width / 2 + NEAR_PX
            sides = 0.0, aside, -aside, distant, -distant
            candidates = (label.at((points[i][0] + across, points[i][1])) for across in sides for i in outwards)
            free = next((area for area in candidates if not areas.crowds(area)), None)
            places[place] = areas.add(free) if free is not None else None
    return [None if area is None else (area.centre, area.middle) for area in places]


class _OccupiedAreas:
    """Rectangles by the bands of the picture that they reach into, so that only those near a place are compared."""

    def __init__(self, rects: Sequence[Rect], width: float) -> None:
        self._width, self._bands = width, defaultdict[int, list[Rect]](list)
        for rect in rects:
            self.add(rect)

    def add(self, rect: Rect) -> Rect:
        for band in _bands(rect):
            self._bands[band].append(rect)
        return rect

    def crowds(self, area: Rect) -> bool:
        if area.left < 0 or area.right > self._width:
            return True
        return any(crowded(area, rect) for band in _bands(area) for rect in self._bands.get(band, ()))


def _bands(area: Rect) -> range:
    return range(int((area.top - GAP_PX) // BAND_PX), int((area.bottom + GAP_PX) // BAND_PX) + 1)


def is_near(label: Rect, points: Sequence[Point]) -> bool:
    """Return whether a label is at most 20 pixels from its arrow; `points` are the control points of the arrow."""
    return min(distance_px(label, point) for point in curve_points(points)) <= NEAR_PX


def crowded(rect: Rect, area: Rect) -> bool:
    """Return whether two rectangles overlap or are less than 2 pixels apart, both horizontally and vertically.

    >>> crowded(Rect(0, 0, 9, 9), Rect(10, 0, 9, 9)), crowded(Rect(0, 0, 9, 9), Rect(12, 0, 9, 9))
    (True, False)
    """
    across = min(rect.right, area.right) - max(rect.left, area.left)
    return across > -GAP_PX and min(rect.bottom, area.bottom) - max(rect.top, area.top) > -GAP_PX


def distance_px(area: Rect, point: Point) -> float:
    """Return the distance in pixels between a rectangle and a point; 0 if the point is inside the rectangle.

    >>> distance_px(Rect(0, 0, 10, 10), (13, 14)), distance_px(Rect(0, 0, 10, 10), (5, 5))
    (5.0, 0.0)
    """
    across = max(area.left - point[0], 0.0, point[0] - area.right)
    return hypot(across, max(area.top - point[1], 0.0, point[1] - area.bottom))


def curve_points(points: Sequence[Point]) -> Iterator[Point]:
    """Yield the start of a path of cubic Bézier curves, and then 8 points along each curve.

    `points` are the start, then three control points for each curve.

    >>> list(curve_points([(0, 0), (0, 2), (0, 4), (0, 6)]))[::4]
    [(0.0, 0.0), (0.0, 3.0), (0.0, 6.0)]
    """
    yield float(points[0][0]), float(points[0][1])
    for start in range(0, len(points) - 3, 3):
        xs, ys = zip(*points[start : start + 4], strict=True)
        for share in (step / SAMPLES for step in range(1, SAMPLES + 1)):
            rest = 1 - share
            weights = rest**3, 3 * rest**2 * share, 3 * rest * share**2, share**3
            x, y = (sum(map(mul, weights, coordinates)) for coordinates in (xs, ys))
            yield x, y
