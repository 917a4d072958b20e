"""A picture's legend: swatches with a name each, in as many rows as they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flowgraph.diagrams.write.svg.geometry import LINE, MARGIN, WIDTH, Rect, TextLine, baseline, cut, hatching, star

SWATCH_WIDTH, SWATCH_HEIGHT, GAP, ROW = 20.0, 14.0, 18.0, 20.0
NAME_AT_MOST = 320.0

Sample = Literal["box", "hatched", "stripes", "line", "mark", "dot", "star"]


@dataclass(frozen=True)
class Entry:
    """What a swatch shows: the classes of what it stands for, its name, and the short key that stands in its shapes."""

    classes: str
    name: str
    key: str = ""
    sample: Sample = "box"


@dataclass(frozen=True)
class Swatch:
    """One entry on the picture."""

    entry: Entry
    rect: Rect
    key: TextLine
    corners: str
    name: TextLine
    hatch: str


@dataclass(frozen=True)
class Legend:
    """Swatches, and the height that they take, the gap to what is below them included."""

    swatches: tuple[Swatch, ...]
    height: float


def legend(entries: Sequence[Entry], top: float, left: float = MARGIN, right: float = WIDTH - MARGIN) -> Legend:
    """Lay entries out in rows between two edges.

    >>> legend([], 40).height, len(legend([Entry("bar-generate", "generate")], 40).swatches)
    (0.0, 1)
    """
    swatches, x, y = list[Swatch](), left, top
    for entry in entries:
        name = cut(entry.name, NAME_AT_MOST, "small")
        width = SWATCH_WIDTH + 6 + TextLine(0, 0, name, "small").width
        if x + width > right and x > left:
            x, y = left, y + ROW
        swatches.append(_swatch(entry, name, x, y))
        x += width + GAP
    return Legend(tuple(swatches), y + ROW - top + (LINE - 6) if swatches else 0.0)


def _swatch(entry: Entry, name: str, left: float, top: float) -> Swatch:
    rect = Rect(left, top, SWATCH_WIDTH, SWATCH_HEIGHT)
    level = baseline(rect.middle, "small")
    key = TextLine(rect.centre, level, entry.key, "on small", "middle")
    hatch = hatching(rect) if entry.sample == "hatched" else ""
    corners = star(rect.centre, rect.middle, 7.0) if entry.sample == "star" else ""
    return Swatch(entry, rect, key, corners, TextLine(rect.right + 6, level, name, "small"), hatch)
