"""Rectangles, lines of text and shapes, in units of the picture (CSS pixels)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from flowgraph.diagrams.model.labels import LABEL_CHARACTERS, clean
from flowgraph.diagrams.write.style import HEAD_PX, SIZE_PX, SMALL_PX
from flowgraph.diagrams.write.svg.text_width import fitted, text_width_px

WIDTH, MARGIN = 960.0, 16.0
TITLE_BASELINE, TITLE_HEIGHT = 28.0, 44.0
TITLE_CHARACTERS = 100
ASCENT, DESCENT = 0.76, 0.24  # of the size of a font: what letters need above their baseline, and below
LINE = 14.0  # from one baseline to the next in small text

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]


@dataclass(frozen=True)
class Rect:
    """A rectangle by its left upper corner."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Return the right edge."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """Return the lower edge."""
        return self.top + self.height

    @property
    def middle(self) -> float:
        """Return the height of the middle."""
        return self.top + self.height / 2

    @property
    def centre(self) -> float:
        """Return how far right the middle is."""
        return self.left + self.width / 2

    def meets(self, other: Rect) -> bool:
        """Return whether two rectangles have more than an edge in common.

        >>> Rect(0, 0, 10, 10).meets(Rect(5, 5, 10, 10)), Rect(0, 0, 10, 10).meets(Rect(10, 0, 10, 10))
        (True, False)
        """
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def holds(self, other: Rect) -> bool:
        """Return whether another rectangle lies in this one."""
        across = self.left <= other.left and other.right <= self.right
        return across and self.top <= other.top and other.bottom <= self.bottom


@dataclass(frozen=True)
class TextLine:
    """A line of text, by the place of its anchor on its baseline; its look depends on its `classes`."""

    x: float
    y: float
    text: str
    classes: str = ""
    anchor: Anchor = "start"

    @property
    def size_px(self) -> float:
        """Return the size of the font."""
        return size_px(self.classes)

    @property
    def width(self) -> float:
        """Return an upper bound of the width."""
        return width_of(self.text, self.classes)

    @property
    def rect(self) -> Rect:
        """Return the rectangle that it needs."""
        left = self.x - self.width * {"start": 0.0, "middle": 0.5, "end": 1.0}[self.anchor]
        return Rect(left, self.y - ASCENT * self.size_px, self.width, self.size_px)


def size_px(classes: str) -> float:
    """Return the size of the font of text with these classes.

    >>> size_px("small muted"), size_px("head"), size_px("")
    (11.0, 16.0, 12.0)
    """
    names = classes.split()
    return SMALL_PX if "small" in names else HEAD_PX if "head" in names else SIZE_PX


def width_of(text: str, classes: str = "") -> float:
    """Return an upper bound of the width of a text with these classes."""
    return text_width_px(text, size_px(classes), bold=_is_bold(classes))


def _is_bold(classes: str) -> bool:
    return bool({"head", "strong"} & set(classes.split()))


def cut(text: str, room: float, classes: str = "", limit_characters: int = LABEL_CHARACTERS) -> str:
    """Return a user's text as one line that fits in a room."""
    return fitted(clean(text, limit_characters), room, size_px(classes), bold=_is_bold(classes))


def heading(title: str, width: float = WIDTH) -> TextLine:
    """Return a picture's title at its top."""
    text = cut(title, width - 2 * MARGIN, "head", TITLE_CHARACTERS)
    return TextLine(MARGIN, TITLE_BASELINE, text, "head")


def baseline(middle: float, classes: str = "") -> float:
    """Return the baseline that centres a text on a height.

    >>> baseline(100.0, "small")
    103.96
    """
    return middle + 0.36 * size_px(classes)


def widest(texts: Iterable[str], classes: str = "") -> float:
    """Return the width of the widest of several texts; 0 without any."""
    return max((width_of(text, classes) for text in texts), default=0.0)


def short(length: float) -> str:
    """Write a length to a hundredth of a unit.

    >>> short(12.0), short(1234.567)
    ('12', '1234.57')
    """
    return f"{length:.2f}".rstrip("0").rstrip(".") if length else "0"


def polyline(points: Iterable[Point]) -> str:
    """Write points as the data of an SVG path.

    >>> polyline([(1.0, 2.0), (3.25, 4.0)])
    'M1 2L3.25 4'
    """
    return "M" + "L".join(f"{short(x)} {short(y)}" for x, y in points)


def corners(points: Iterable[Point]) -> str:
    """Write points as the corners of an SVG polygon."""
    return " ".join(f"{short(x)},{short(y)}" for x, y in points)


def hatching(rect: Rect, gap: float = 6.0) -> str:
    """Return the data of an SVG path of slanting lines that fill a rectangle and stay in it.

    >>> hatching(Rect(0, 0, 12, 6))
    'M0 6L6 0M6 6L12 0'
    """
    data = ""
    for reach in (gap * place for place in range(1, int((rect.width + rect.height) / gap) + 1)):
        # The line on which the ways from the left and from the top add up to `reach`.
        low, high = min(reach, rect.height), max(0.0, reach - rect.width)
        start = rect.left + reach - low, rect.top + low
        end = rect.left + reach - high, rect.top + high
        data += polyline([start, end]) if start != end else ""
    return data


def star(x: float, y: float, radius: float) -> str:
    """Return the corners of a star of five points, as an SVG polygon has them.

    >>> star(0, 0, 10).split()[0], len(star(0, 0, 10).split())
    ('0,-10', 10)
    """
    turns = [(place * math.pi / 5, radius if place % 2 == 0 else radius * 0.45) for place in range(10)]
    return corners((x + reach * math.sin(turn), y - reach * math.cos(turn)) for turn, reach in turns)


def shares(weights: Sequence[float], room: float, minimum: float) -> tuple[float, ...]:
    """Divide a room by weights, with no share below `minimum` as far as there is room for that.

    >>> shares([1, 1, 2], 100, 10), shares([1, 99], 100, 20.0), shares([1, 1], 10, 20)
    ((25.0, 25.0, 50.0), (20.0, 80.0), (5.0, 5.0))
    """
    if not weights:
        return ()
    floor = min(minimum, room / len(weights))
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
