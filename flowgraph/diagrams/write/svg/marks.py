"""The marks that an SVG is built of, and their text: every value is escaped, every length has two decimals at most.

A mark's classes, data and shape are ours; only its text and titles are a user's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from markupsafe import escape

from flowgraph.diagrams.write.svg.geometry import Point, Rect, polyline, short
from flowgraph.diagrams.write.svg.text_lines import TextLine

Value = str | float
"""Of an attribute: a text, or a length in units of the picture."""

_ILLEGAL = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")


@dataclass(frozen=True)
class Mark:
    """One element of an SVG: its tag, its attributes in order, its text, and the elements in it."""

    tag: str
    attributes: Mapping[str, Value]
    text: str = ""
    children: tuple[Mark, ...] = ()

    def classes(self) -> set[str]:
        """Return the CSS classes of this element and of all elements inside it."""
        inner = (mark.classes() for mark in self.children)
        return set(str(self.attributes.get("class", "")).split()).union(*inner)


def group(classes: str, *children: Mark | None, title: str = "", focus: bool = False, **data: Value) -> Mark:
    """Return an SVG group of marks with these CSS classes; children that are None are left out.

    `title` is the tooltip of the group, `focus` makes the group reachable by keyboard, and `data` become its `data-`
    attributes, which the page's script reads; in their names, `_` becomes `-`, or nothing at the end.

    >>> group("box", from_="n0").attributes
    {'class': 'box', 'data-from': 'n0'}
    """
    attributes: dict[str, Value] = {"class": " ".join(classes.split())}
    attributes |= {f"data-{name.rstrip('_').replace('_', '-')}": value for name, value in data.items()}
    attributes |= {"tabindex": "0"} if focus else {}
    titles = (Mark("title", {}, title),) if title else ()
    return Mark("g", attributes, children=titles + tuple(mark for mark in children if mark is not None))


def rect(classes: str, area: Rect, radius: float = 0) -> Mark:
    """Return a rectangle that covers `area`, with these CSS classes and corners of `radius` pixels."""
    size = {"x": area.left, "y": area.top, "width": area.width, "height": area.height}
    return Mark("rect", {"class": classes, **size, **({"rx": radius} if radius else {})})


def line(classes: str, start: Point, end: Point) -> Mark:
    """Return a straight line between two points, with these CSS classes."""
    return Mark("line", {"class": classes, "x1": start[0], "y1": start[1], "x2": end[0], "y2": end[1]})


def path(classes: str, data: str) -> Mark:
    """Return an SVG path with these CSS classes; `data` is its path data, such as "M0 0L5 5"."""
    return Mark("path", {"class": classes, "d": data})


def polygon(classes: str, corners: Iterable[Point]) -> Mark:
    """Return a filled polygon with these CSS classes and corners."""
    return Mark("polygon", {"class": classes, "points": " ".join(f"{short(x)},{short(y)}" for x, y in corners)})


def circle(classes: str, centre: Point, radius: float) -> Mark:
    """Return a circle with these CSS classes; the radius is in pixels."""
    return Mark("circle", {"class": classes, "cx": centre[0], "cy": centre[1], "r": radius})


def text_mark(text: TextLine, *spans: Mark) -> Mark:
    """Return a line of text as a mark; `spans` follow on the same line, and may have other CSS classes."""
    classes = {"class": text.classes} if text.classes else {}
    anchor = {"text-anchor": text.anchor} if text.anchor != "start" else {}
    return Mark("text", {**classes, "x": text.x, "y": text.y, **anchor}, text.text, spans)


def star(classes: str, x: float, y: float, radius: float) -> Mark:
    """Return a five-pointed star around (x, y) with these CSS classes; `radius` is from the centre to the points."""
    turns = [(place * math.pi / 5, radius if place % 2 == 0 else radius * 0.45) for place in range(10)]
    return polygon(classes, ((x + reach * math.sin(turn), y - reach * math.cos(turn)) for turn, reach in turns))


def stripes(area: Rect) -> Mark:
    """Return the mark of vertical stripes that fill an area: one dashed line, as wide as the area is high."""
    middle = line("stripes", (area.left, area.middle), (area.right, area.middle))
    return Mark("line", {**middle.attributes, "stroke-width": area.height})


def hatching(classes: str, area: Rect, gap: float = 6.0) -> Mark:
    """Return diagonal lines that fill a rectangle, as one path; the lines are `gap` pixels apart along its edges.

    >>> hatching("hatch", Rect(0, 0, 12, 6)).attributes["d"]
    'M0 6L6 0M6 6L12 0'
    """
    data = ""
    for reach in (gap * place for place in range(1, int((area.width + area.height) / gap) + 1)):
        # The line on which the ways from the left and from the top add up to `reach`.
        low, high = min(reach, area.height), max(0.0, reach - area.width)
        start = area.left + reach - low, area.top + low
        end = area.left + reach - high, area.top + high
        data += polyline([start, end]) if start != end else ""
    return path(classes, data)


def xml_lines(mark: Mark) -> Iterator[str]:
    """Yield the lines of a mark and of all marks inside it as XML; texts are escaped.

    >>> list(xml_lines(group("a", text_mark(TextLine(1, 2.5, "<b>")), title="x")))
    ['<g class="a">', '<title>x</title>', '<text x="1" y="2.5">&lt;b&gt;</text>', '</g>']
    """
    opened = f"<{mark.tag}"
    for name, value in mark.attributes.items():
        opened += f' {name}="{escaped(value) if isinstance(value, str) else short(value)}"'
    if mark.tag in ("text", "tspan", "title"):
        spans = "".join(span for child in mark.children for span in xml_lines(child))
        yield f"{opened}>{escaped(mark.text)}{spans}</{mark.tag}>"
    elif mark.tag != "g":
        yield f"{opened}/>"
    else:
        yield f"{opened}>"
        for child in mark.children:
            yield from xml_lines(child)
        yield "</g>"


def escaped(text: str) -> str:
    r"""Return a text escaped for XML, without the characters that XML 1.0 does not allow.

    Source: XML 1.0, section 2.2.

    >>> escaped("a\x1b[31m\ud83d <b>")
    'a[31m &lt;b&gt;'
    """
    return str(escape(_ILLEGAL.sub("", text)))
