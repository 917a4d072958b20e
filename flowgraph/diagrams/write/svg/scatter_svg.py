"""Draw a search's candidates as an SVG: seconds a step across, memory of the fullest device up, the front as a line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Literal

from flowgraph.cluster.cluster import show_bytes
from flowgraph.diagrams.model.charts import Dot, DotMark, Scatter
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.quantities import show_s
from flowgraph.diagrams.model.ticks import labelled_ticks, number_text, pad_range, time_unit
from flowgraph.diagrams.write.svg.geometry import MARGIN, TITLE_HEIGHT, WIDTH, LinearScale, Point, Rect, short
from flowgraph.diagrams.write.svg.marks import Mark, circle, group, line, path, star, text_mark
from flowgraph.diagrams.write.svg.svg_frame import ALONE, Entry, Look, legend, svg_document
from flowgraph.diagrams.write.svg.text_lines import Anchor, TextLine, baseline, clean_and_cut

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
GIB, MIB = float(2**30), float(2**20)


@dataclass(frozen=True)
class DotStyle:
    """The look of a kind of candidates: the radius of dots, name and sample in the legend, and CSS classes of names."""

    radius: float
    name: str
    sample: Literal["star", "dot"]
    classes: str


STYLES: dict[DotMark, DotStyle] = {  # the best first
    "best": DotStyle(8.0, "the best", "star", "strong halo"),
    "front": DotStyle(5.0, "no other is better in both", "dot", "small halo"),
    "other": DotStyle(3.0, "other candidates", "dot", "small muted halo"),
}
RANKS = list(STYLES)


@dataclass(frozen=True)
class Axis:
    """An axis of a plot: its scale (of logarithms if `log`), the unit of its texts, and its ticks as (value, text)."""

    scale: LinearScale
    unit: str
    ticks: tuple[tuple[float, str], ...]
    log: bool = False

    def place(self, value: float) -> float:
        """Return the coordinate in pixels of a value; on a logarithmic axis, at least that of 1e-12."""
        return self.scale.at(_log(value) if self.log else value)


def _log(value: float) -> float:
    return math.log10(max(value, 1e-12))


@dataclass(frozen=True)
class CandidateDot:
    """A candidate and the centre of its dot in pixels; `row` is the index of the candidate in the data."""

    row: int
    dot: Dot
    x: float
    y: float

    @property
    def style(self) -> DotStyle:
        """Return the look of the dot, which depends on the candidate's mark."""
        return STYLES[self.dot.mark]

    @property
    def rect(self) -> Rect:
        """Return the square around the dot, in pixels."""
        radius = self.style.radius
        return Rect(self.x - radius, self.y - radius, 2 * radius, 2 * radius)


def scatter_svg(scatter: Scatter, look: Look = ALONE) -> str:
    """Return a scatter plot of a search's candidates as SVG, 960 pixels wide: seconds a step across, memory upwards.

    `look` says whether the picture is embedded in a page. A line connects the candidates marked best or front. If the
    slowest takes more than 20 times as long as the fastest, seconds are on a logarithmic scale. At most 24 candidates,
    the best first, are named where there is room.
    """
    names = {dot.mark: dot.label for dot in reversed(scatter.dots)}
    # The best is named here, for it may have no place at its dot.
    best = f": {clean(names['best'])}" if names.get("best") else ""
    entries = [
        Entry(f"dot-{mark}", style.name + best * (mark == "best"), sample=style.sample)
        for mark, style in STYLES.items()
        if mark in names
    ]
    key, key_height = legend(entries, TITLE_HEIGHT)
    plot = Rect(MARGIN + LEFT, TITLE_HEIGHT + key_height + 20, WIDTH - 2 * MARGIN - LEFT - 10, PLOT_HEIGHT)
    sizes = [float(dot.memory_bytes) for dot in scatter.dots] or [0.0, GIB]
    unit, unit_bytes = ("GiB", GIB) if max(sizes) >= GIB / 2 else ("MiB", MIB)
    up = _even_axis(plot.bottom, plot.top, min(sizes), max(sizes), unit, unit_bytes)
    across = _seconds_axis(scatter.dots, plot)
    dots = [
        CandidateDot(row, dot, across.place(dot.seconds), up.place(dot.memory_bytes))
        for row, dot in enumerate(scatter.dots)
    ]
    dots.sort(key=lambda dot: RANKS.index(dot.dot.mark))  # the best first, in the search's order
    front = sorted((dot.x, dot.y) for dot in dots if dot.dot.mark in ("best", "front"))
    marks = [key, *_grid(across, up, plot), *([path("front-line", front_path(front))] if len(front) > 1 else [])]
    for placed in sorted(dots, key=lambda dot: (-RANKS.index(dot.dot.mark), dot.row)):
        dot, middle, radius = placed.dot, (placed.x, placed.y), placed.style.radius
        title = (
            f"{clean(dot.label)}: {show_s(dot.seconds)} a step, {show_bytes(dot.memory_bytes)} on the fullest device"
        )
        title += "".join(f". {clean(text, 400)}" for text in (dot.about, dot.why) if text)
        shape = star("shape", *middle, radius) if dot.mark == "best" else circle("shape", middle, radius)
        marks.append(group(f"dot dot-{dot.mark}", shape, title=title, row=placed.row, focus=True))
    marks += map(text_mark, _labels(dots, front, plot))
    if not dots:
        marks.append(text_mark(TextLine(plot.centre, plot.middle, "no candidates", "muted", "middle")))
    return svg_document("scatter", scatter, marks, look, height=plot.bottom + FOOT + MARGIN / 2)


def _grid(across: Axis, up: Axis, plot: Rect) -> Iterator[Mark]:
    for value, text in across.ticks:
        x = across.place(value)
        yield line("grid", (x, plot.top), (x, plot.bottom))
        yield text_mark(TextLine(x, plot.bottom + 17, text, "small muted", "middle"))
    for value, text in up.ticks:
        y = up.place(value)
        yield line("grid", (plot.left, y), (plot.right, y))
        yield text_mark(TextLine(plot.left - 8, baseline(y, "small"), text, "small muted", "end"))
    yield path("axis", f"M{short(plot.left)} {short(plot.top)}V{short(plot.bottom)}H{short(plot.right)}")
    seconds = f"time of a step ({across.unit}{', log scale' if across.log else ''})"
    yield text_mark(TextLine(plot.centre, plot.bottom + 36, seconds, "small", "middle"))
    yield text_mark(TextLine(MARGIN, plot.top - 12, f"memory of the fullest device ({up.unit})", "small"))


def _seconds_axis(dots: Sequence[Dot], plot: Rect) -> Axis:
    seconds = [dot.seconds for dot in dots] or [0.0, 1.0]
    low_s, high_s = min(seconds), max(seconds)
    if low_s <= 0 or high_s / low_s <= LOG_FROM:
        unit = time_unit(high_s)
        return _even_axis(plot.left, plot.right, low_s, high_s, unit.name, unit.seconds)
    unit = time_unit(math.sqrt(low_s * high_s))
    low, high = low_s / unit.seconds / 1.25, high_s / unit.seconds * 1.25
    scale = LinearScale(plot.left, plot.right, _log(low * unit.seconds), _log(high * unit.seconds))
    marks = tuple((mark * unit.seconds, number_text(mark)) for mark in log_ticks(low, high))
    return Axis(scale, unit.name, marks, log=True)


def _even_axis(start: float, end: float, low: float, high: float, name: str, unit: float) -> Axis:
    low, high = pad_range(low / unit, high / unit)
    marks = tuple((mark * unit, text) for mark, text in labelled_ticks(low, high, 7))
    return Axis(LinearScale(start, end, low * unit, high * unit), name, marks)


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Return the ticks of a logarithmic axis from `low` to `high`: 1, 2 and 5 times powers of ten.

    Over four or more decades, only the powers of ten are returned. `low` must be positive.

    >>> log_ticks(3, 120), log_ticks(0.5, 2e6)
    ((5.0, 10.0, 20.0, 50.0, 100.0), (1.0, 10.0, 100.0, 1000.0, 10000.0, 100000.0, 1000000.0))
    """
    factors = (1.0, 2.0, 5.0) if high / low < 1e4 else (1.0,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [round(factor * 10.0**power, 12) for power in powers for factor in factors]
    return tuple(mark for mark in marks if low <= mark <= high)


def front_path(front: Sequence[Point]) -> str:
    """Return the SVG path data of a step line through points: across first, then up or down to the next point.

    `front` has the points from left to right, at least one.

    >>> front_path([(0, 9), (5, 4), (7, 2)])
    'M0 9H5V4H7V2'
    """
    (x, y), *rest = front
    return f"M{short(x)} {short(y)}" + "".join(f"H{short(x)}V{short(y)}" for x, y in rest)


def _labels(dots: Sequence[CandidateDot], front: Sequence[Point], plot: Rect) -> Iterator[TextLine]:
    """Yield the names, with rank, of dots, the best first, that have room next to dots, names and the front."""
    occupied = [dot.rect for dot in dots]
    for (left, upper), (right, lower) in pairwise(front):
        occupied += [Rect(left, upper - 1, right - left, 2), Rect(right - 1, min(upper, lower), 2, abs(lower - upper))]
    room = Rect(plot.left + 2, plot.top - 8, plot.width + 8, plot.height + 6)
    limit = len(occupied) + LABELS_MAX
    for dot in dots:
        if not dot.dot.label or len(occupied) >= limit:
            continue
        is_other, radius, classes = dot.dot.mark == "other", dot.style.radius, dot.style.classes
        sides = SIDES if is_other else (*SIDES, HIGHER)
        for width_px, (anchor, (right, down), (dx, dy)) in product(LABELS_PX[:1] if is_other else LABELS_PX, sides):
            x, y = dot.x + right * radius + dx, dot.y + down * radius + dy
            text = clean_and_cut(f"{dot.row + 1} {dot.dot.label}", width_px, classes)
            label = TextLine(x, y if down else baseline(y, classes), text, classes, anchor)
            if room.holds(label.rect) and not any(label.rect.meets(area) for area in occupied):
                occupied.append(label.rect)
                yield label
                break
