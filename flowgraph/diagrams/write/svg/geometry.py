"""What pictures with a scale are laid out of: rectangles and lines of text, in units of the picture (CSS pixels)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from flowgraph.diagrams.model.labels import LABEL_CHARACTERS, clean
from flowgraph.diagrams.write.style import HEAD_PX, SIZE_PX, SMALL_PX
from flowgraph.diagrams.write.svg.svg_frame import short
from flowgraph.diagrams.write.svg.text_width import fitted, text_width_px

WIDTH, MARGIN = 960.0, 16.0
TITLE_BASELINE, TITLE_HEIGHT = 28.0, 44.0
TITLE_CHARACTERS = 100
ASCENT, DESCENT = 0.76, 0.24  # of the size of a font: what letters need above their baseline, and below
LINE = 14.0  # from one baseline to the next in small text

Anchor = Literal["start", "middle", "end"]


@dataclass(frozen=True)
class Rect:
    """A rectangle by its left upper corner."""

    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Give its right edge."""
        return self.left + self.width

    @property
    def bottom(self) -> float:
        """Give its lower edge."""
        return self.top + self.height

    @property
    def middle(self) -> float:
        """Give the height of its middle."""
        return self.top + self.height / 2

    @property
    def centre(self) -> float:
        """Give how far right its middle is."""
        return self.left + self.width / 2

    def meets(self, other: Rect) -> bool:
        """Say whether two rectangles have more than an edge in common.

        >>> Rect(0, 0, 10, 10).meets(Rect(5, 5, 10, 10)), Rect(0, 0, 10, 10).meets(Rect(10, 0, 10, 10))
        (True, False)
        """
        across = self.left < other.right and other.left < self.right
        return across and self.top < other.bottom and other.top < self.bottom

    def holds(self, other: Rect) -> bool:
        """Say whether another rectangle lies in this one."""
        across = self.left <= other.left and other.right <= self.right
        return across and self.top <= other.top and other.bottom <= self.bottom


@dataclass(frozen=True)
class TextLine:
    """A line of text, from the place of its anchor on its baseline; `classes` say how it looks."""

    x: float
    y: float
    text: str
    classes: str = ""
    anchor: Anchor = "start"

    @property
    def size_px(self) -> float:
        """Give the size of its font."""
        return size_px(self.classes)

    @property
    def width(self) -> float:
        """Give how wide it is drawn at most."""
        return width_of(self.text, self.classes)

    @property
    def rect(self) -> Rect:
        """Give the rectangle that it needs."""
        left = self.x - self.width * {"start": 0.0, "middle": 0.5, "end": 1.0}[self.anchor]
        return Rect(left, self.y - ASCENT * self.size_px, self.width, self.size_px)


def size_px(classes: str) -> float:
    """Give the size of the font of text with these classes.

    >>> size_px("small muted"), size_px("head"), size_px("")
    (11.0, 16.0, 12.0)
    """
    names = classes.split()
    return SMALL_PX if "small" in names else HEAD_PX if "head" in names else SIZE_PX


def width_of(text: str, classes: str = "") -> float:
    """Give how wide a text with these classes is drawn at most."""
    return text_width_px(text, size_px(classes), bold=is_bold(classes))


def cut(text: str, room: float, classes: str = "", limit_characters: int = LABEL_CHARACTERS) -> str:
    """Make a user's text fit in a room: one line, cut where it is too long."""
    return fitted(clean(text, limit_characters), room, size_px(classes), bold=is_bold(classes))


def is_bold(classes: str) -> bool:
    """Say whether text with these classes is bold."""
    return bool({"head", "strong"} & set(classes.split()))


def heading(title: str, width: float = WIDTH) -> TextLine:
    """Give a picture's title at its top."""
    shown = fitted(clean(title, TITLE_CHARACTERS), width - 2 * MARGIN, HEAD_PX, bold=True)
    return TextLine(MARGIN, TITLE_BASELINE, shown, "head")


def baseline(middle: float, classes: str = "") -> float:
    """Give the baseline of a text whose letters are to be around a height.

    >>> baseline(100.0, "small")
    103.96
    """
    return middle + 0.36 * size_px(classes)


def widest(texts: Iterable[str], classes: str = "") -> float:
    """Give the width of the widest of several texts; 0 without any."""
    return max((width_of(text, classes) for text in texts), default=0.0)


def hatching(rect: Rect, gap: float = 6.0) -> str:
    """Give the data of an SVG path of slanting lines that fill a rectangle and stay in it.

    >>> hatching(Rect(0, 0, 12, 6))
    'M0 6L6 0M6 6L12 0'
    """
    lines = [_slanting(rect, at * gap) for at in range(1, int((rect.width + rect.height) / gap) + 1)]
    drawn = [(one, other) for one, other in lines if one != other]
    return "".join("M{} {}L{} {}".format(*map(short, (*one, *other))) for one, other in drawn)


def _slanting(rect: Rect, at: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Give the ends of the line on which the ways from the left and from the top make `at`."""
    low, high = min(at, rect.height), max(0.0, at - rect.width)
    return (rect.left + at - low, rect.top + low), (rect.left + at - high, rect.top + high)


def star(x: float, y: float, radius: float) -> str:
    """Give the corners of a star of five points, as an SVG polygon has them.

    >>> star(0, 0, 10).split()[0], len(star(0, 0, 10).split())
    ('0,-10', 10)
    """
    turns = [(at * math.pi / 5, radius if at % 2 == 0 else radius * 0.45) for at in range(10)]
    return " ".join(f"{short(x + far * math.sin(turn))},{short(y - far * math.cos(turn))}" for turn, far in turns)


def shares(weights: Sequence[float], room: float, least: float) -> tuple[float, ...]:
    """Share out a room by weights, none less than `least` as far as there is room for that.

    >>> shares([1, 1, 2], 100, 10), shares([1, 99], 100, 20.0), shares([1, 1], 10, 20)
    ((25.0, 25.0, 50.0), (20.0, 80.0), (5.0, 5.0))
    """
    if not weights:
        return ()
    floor = min(least, room / len(weights))
    small = set[int]()
    while True:
        total = sum(each for at, each in enumerate(weights) if at not in small)
        left = room - floor * len(small)
        widths = [floor if at in small or not total else left * each / total for at, each in enumerate(weights)]
        below = {at for at, each in enumerate(widths) if each < floor * (1 - 1e-9)}
        if not below:
            return tuple(widths)
        small |= below
