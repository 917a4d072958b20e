"""A picture's legend: swatches with a name each, in as many rows as they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flowgraph.diagrams.write.svg.geometry import LINE, MARGIN, WIDTH, Rect, TextLine, baseline, cut, hatching, star
from flowgraph.diagrams.write.svg.marks import Mark, circle, group, line, path, polygon, rect, stripes, words

SWATCH_WIDTH, SWATCH_HEIGHT, GAP, ROW = 20.0, 14.0, 18.0, 20.0
NAME_MAX = 320.0

Sample = Literal["box", "hatched", "stripes", "line", "mark", "dot", "star"]


@dataclass(frozen=True)
class Entry:
    """What a swatch shows: the classes of what it stands for, its name, and the short key that stands in its shapes."""

    classes: str
    name: str
    key: str = ""
    sample: Sample = "box"


@dataclass(frozen=True)
class Legend:
    """Swatches with their names, and the height that they take with the gap below them."""

    mark: Mark
    height: float


def legend(entries: Sequence[Entry], top: float, left: float = MARGIN, right: float = WIDTH - MARGIN) -> Legend:
    """Lay entries out in rows between two edges.

    >>> legend([], 40).height, len(legend([Entry("bar-generate", "generate")], 40).mark.children)
    (0.0, 2)
    """
    marks, x, y = list[Mark](), left, top
    for entry in entries:
        name = cut(entry.name, NAME_MAX, "small")
        width = SWATCH_WIDTH + 6 + TextLine(0, 0, name, "small").width
        if x + width > right and x > left:
            x, y = left, y + ROW
        area = Rect(x, y, SWATCH_WIDTH, SWATCH_HEIGHT)
        marks += [_swatch(entry, area), words(TextLine(area.right + 6, baseline(area.middle, "small"), name, "small"))]
        x += width + GAP
    return Legend(group("legend", *marks), y + ROW - top + (LINE - 6) if marks else 0.0)


def _swatch(entry: Entry, area: Rect) -> Mark:
    centre, ends = (area.centre, area.middle), ((area.left, area.middle), (area.right, area.middle))
    marks: list[Mark]
    match entry.sample:
        case "box":
            marks = [rect("shape", area, 2)]
        case "stripes":
            marks = [rect("shape", area, 2), stripes(area)]
        case "hatched":
            marks = [rect("shape", area, 2), path("hatch", hatching(area))]
        case "star":
            marks = [polygon("shape", star(*centre, 7.0))]
        case "dot":
            marks = [circle("shape", centre, 4)]
        case "line":
            marks = [line("line", *ends)]
        case "mark":
            marks = [line("mark", *ends), circle("mark-dot", centre, 3.5)]
    key = TextLine(area.centre, baseline(area.middle, "small"), entry.key, "on small", "middle")
    return group(entry.classes, *marks, words(key) if entry.key else None)
