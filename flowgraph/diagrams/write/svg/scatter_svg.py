"""Draw a search's candidates as an SVG: seconds a step across, memory of the fullest device up, the front as a line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from flowgraph.cluster.cluster import show_bytes
from flowgraph.diagrams.model.charts import Dot, DotMark, Scatter
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.quantities import show_s
from flowgraph.diagrams.model.ticks import number_text, padded, ticks, unit_of
from flowgraph.diagrams.write.svg.geometry import (
    MARGIN,
    TITLE_HEIGHT,
    WIDTH,
    Anchor,
    Point,
    Rect,
    TextLine,
    baseline,
    cut,
    short,
    star,
)
from flowgraph.diagrams.write.svg.legend import Entry, Sample, legend
from flowgraph.diagrams.write.svg.marks import Mark, circle, group, line, path, polygon, words
from flowgraph.diagrams.write.svg.svg_frame import ALONE, Look, framed

PLOT_HEIGHT, LEFT, FOOT = 380.0, 58.0, 44.0
LOG_FROM = 20.0  # times the fewest seconds: a wider range is drawn by its logarithm
LABELS_PX = (200.0, 110.0)  # of a name, and of one that has no place at that width
LABELS_MAX = 24
# Where a name may stand: its anchor, how far right and down of the dot's middle in radii and in units.
SIDES: tuple[tuple[Anchor, Point, Point], ...] = (
    ("start", (1, -1), (0, -4)),
    ("start", (1, 0), (5, 0)),  # its letters around the dot's middle
    ("start", (1, 1), (0, 11)),
    ("end", (-1, 0), (-5, 0)),
    ("middle", (0, -1), (0, -5)),
    ("middle", (0, 1), (0, 13)),
    ("end", (-1, 1), (0, 11)),
)
HIGHER: tuple[Anchor, Point, Point] = ("start", (-1, -1), (0, -16))  # for the best ones only
RADII: dict[DotMark, float] = {"best": 8.0, "front": 5.0, "other": 3.0}
NAMES: dict[DotMark, str] = {"best": "the best", "front": "no other is better in both", "other": "other candidates"}
GIB, MIB = float(2**30), float(2**20)


@dataclass(frozen=True)
class Axis:
    """A range of numbers along an edge of the plot, with even steps or equal factors, and its marks with their text."""

    start: float
    end: float
    low: float
    high: float
    log: bool
    unit: str
    ticks: tuple[tuple[float, str], ...]

    def place(self, value: float) -> float:
        """Return the place of a number."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = (math.log10(max(number, 1e-12)) for number in (low, high, value))
        return self.start + (self.end - self.start) * (value - low) / (high - low)


@dataclass(frozen=True)
class CandidateDot:
    """A candidate on the picture; `row` is its place in the data."""

    row: int
    dot: Dot
    x: float
    y: float

    @property
    def radius(self) -> float:
        """Return the radius of its mark."""
        return RADII[self.dot.mark]

    @property
    def rect(self) -> Rect:
        """Return the square that its mark covers."""
        return Rect(self.x - self.radius, self.y - self.radius, 2 * self.radius, 2 * self.radius)


def scatter_svg(scatter: Scatter, look: Look = ALONE) -> str:
    """Draw candidates as one SVG, 960 units wide."""
    key = legend(_entries(scatter), TITLE_HEIGHT)
    plot = Rect(MARGIN + LEFT, TITLE_HEIGHT + key.height + 20, WIDTH - 2 * MARGIN - LEFT - 10, PLOT_HEIGHT)
    across, up = _seconds_axis(scatter.dots, plot), _memory_axis(scatter.dots, plot)
    dots = [
        CandidateDot(row, dot, across.place(dot.seconds), up.place(dot.memory_bytes))
        for row, dot in enumerate(scatter.dots)
    ]
    dots.sort(key=lambda dot: _rank(dot.dot.mark))  # the best first, in the search's order
    front = front_path(dots)
    marks = [
        key.mark,
        *_grid(across, up, plot),
        *([path("front-line", front)] if front else []),
        *map(_dot_mark, sorted(dots, key=lambda dot: (-_rank(dot.dot.mark), dot.row))),
        *map(words, _labels(dots, plot)),
    ]
    if not dots:
        marks.append(words(TextLine(plot.centre, plot.middle, "no candidates", "muted", "middle")))
    size = {"width": WIDTH, "height": plot.bottom + FOOT + MARGIN / 2}
    return framed("scatter", marks, look, title=scatter.title, about=scatter.about, **size)


def _rank(mark: DotMark) -> int:
    return list(RADII).index(mark)


def _entries(scatter: Scatter) -> list[Entry]:
    """Return what each mark stands for, with the name of the best, which may have no place at its dot."""
    names = {dot.mark: dot.label for dot in reversed(scatter.dots)}
    samples: dict[DotMark, Sample] = {"best": "star", "front": "dot", "other": "dot"}
    best = f": {clean(names['best'])}" if names.get("best") else ""
    return [
        Entry(f"dot-{mark}", name + best * (mark == "best"), sample=samples[mark])
        for mark, name in NAMES.items()
        if mark in names
    ]


def _grid(across: Axis, up: Axis, plot: Rect) -> Iterator[Mark]:
    for value, text in across.ticks:
        x = across.place(value)
        yield line("grid", (x, plot.top), (x, plot.bottom))
        yield words(TextLine(x, plot.bottom + 17, text, "small muted", "middle"))
    for value, text in up.ticks:
        y = up.place(value)
        yield line("grid", (plot.left, y), (plot.right, y))
        yield words(TextLine(plot.left - 8, baseline(y, "small"), text, "small muted", "end"))
    yield path("axis", f"M{short(plot.left)} {short(plot.top)}V{short(plot.bottom)}H{short(plot.right)}")
    seconds = f"time of a step ({across.unit}{', log scale' if across.log else ''})"
    yield words(TextLine(plot.centre, plot.bottom + 36, seconds, "small", "middle"))
    yield words(TextLine(MARGIN, plot.top - 12, f"memory of the fullest device ({up.unit})", "small"))


def _seconds_axis(dots: Sequence[Dot], plot: Rect) -> Axis:
    seconds = [dot.seconds for dot in dots] or [0.0, 1.0]
    log = min(seconds) > 0 and max(seconds) / min(seconds) > LOG_FROM
    unit = unit_of(math.sqrt(min(seconds) * max(seconds)) if log else max(seconds))
    low, high = min(seconds) / unit.seconds, max(seconds) / unit.seconds
    low, high = (low / 1.25, high * 1.25) if log else padded(low, high)
    marks = tuple((mark, number_text(mark)) for mark in log_ticks(low, high)) if log else _even_ticks(low, high)
    return _in_units(Axis(plot.left, plot.right, low, high, log, unit.name, marks), unit.seconds)


def _memory_axis(dots: Sequence[Dot], plot: Rect) -> Axis:
    sizes = [float(dot.memory_bytes) for dot in dots] or [0.0, GIB]
    name, unit = ("GiB", GIB) if max(sizes) >= GIB / 2 else ("MiB", MIB)
    low, high = padded(min(sizes) / unit, max(sizes) / unit)
    return _in_units(Axis(plot.bottom, plot.top, low, high, False, name, _even_ticks(low, high)), unit)


def _even_ticks(low: float, high: float) -> tuple[tuple[float, str], ...]:
    marks = ticks(low, high, 7)
    step = marks[1] - marks[0] if len(marks) > 1 else 1.0
    return tuple((mark, number_text(mark, step)) for mark in marks)


def _in_units(axis: Axis, unit: float) -> Axis:
    """Return an axis in seconds or bytes, from one in a larger unit; its marks keep their text."""
    marks = tuple((mark * unit, text) for mark, text in axis.ticks)
    return replace(axis, low=axis.low * unit, high=axis.high * unit, ticks=marks)


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Return the marks of 1, 2 and 5 times powers of ten in a range, or the powers alone in a wide one.

    >>> log_ticks(3, 120), log_ticks(0.5, 2e6)
    ((5.0, 10.0, 20.0, 50.0, 100.0), (1.0, 10.0, 100.0, 1000.0, 10000.0, 100000.0, 1000000.0))
    """
    factors = (1.0, 2.0, 5.0) if high / low < 1e4 else (1.0,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [round(factor * 10.0**power, 12) for power in powers for factor in factors]
    return tuple(mark for mark in marks if low <= mark <= high)


def _dot_mark(candidate: CandidateDot) -> Mark:
    dot, x, y, radius = candidate.dot, candidate.x, candidate.y, candidate.radius
    title = f"{clean(dot.label)}: {show_s(dot.seconds)} a step, {show_bytes(dot.memory_bytes)} on the fullest device"
    title += "".join(f". {clean(text, 400)}" for text in (dot.about, dot.why) if text)
    shape = polygon("shape", star(x, y, radius)) if dot.mark == "best" else circle("shape", (x, y), radius)
    return group(f"dot dot-{dot.mark}", shape, title=title, row=candidate.row, focus=True)


def front_path(dots: Sequence[CandidateDot]) -> str:
    """Return the line along the front, in steps: each candidate's memory until the next, slower one needs less."""
    points = _front(dots)
    if len(points) < 2:
        return ""
    (x, y), *rest = points
    return f"M{short(x)} {short(y)}" + "".join(f"H{short(x)}V{short(y)}" for x, y in rest)


def _front(dots: Sequence[CandidateDot]) -> list[Point]:
    return sorted((dot.x, dot.y) for dot in dots if dot.dot.mark in ("best", "front"))


def _labels(dots: Sequence[CandidateDot], plot: Rect) -> Iterator[TextLine]:
    """Yield names of the best, the front, then others, wherever a name meets no dot, no other name, and not the front.

    A name begins with the candidate's rank, as in the table next to the picture.
    """
    occupied = [dot.rect for dot in dots]
    for (left, upper), (right, lower) in pairwise(_front(dots)):
        occupied += [Rect(left, upper - 1, right - left, 2), Rect(right - 1, min(upper, lower), 2, abs(lower - upper))]
    room = Rect(plot.left + 2, plot.top - 8, plot.width + 8, plot.height + 6)
    limit = len(occupied) + LABELS_MAX
    for dot in dots:
        label = _first_free(dot, occupied, room) if dot.dot.label and len(occupied) < limit else None
        if label:
            occupied.append(label.rect)
            yield label


def _first_free(candidate: CandidateDot, occupied: Sequence[Rect], room: Rect) -> TextLine | None:
    mark = candidate.dot.mark
    classes = {"best": "strong halo", "front": "small halo", "other": "small muted halo"}[mark]
    widths_px = LABELS_PX[:1] if mark == "other" else LABELS_PX
    sides = SIDES if mark == "other" else (*SIDES, HIGHER)
    name = f"{candidate.row + 1} {candidate.dot.label}"
    for width_px in widths_px:
        for anchor, (right, down), (dx, dy) in sides:
            x, y = candidate.x + right * candidate.radius + dx, candidate.y + down * candidate.radius + dy
            label = TextLine(x, y if down else baseline(y, classes), cut(name, width_px, classes), classes, anchor)
            if room.holds(label.rect) and not any(label.rect.meets(area) for area in occupied):
                return label
    return None
