"""Draw a search's candidates as an SVG: seconds a step across, memory of the fullest device up, the best ones joined.

The geometry is here; `templates/scatter.svg.j2` writes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from flowgraph.cluster.cluster import show_bytes
from flowgraph.diagrams.model.charts import Dot, DotMark, Scatter
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.quantities import show_s
from flowgraph.diagrams.model.ticks import number_text, padded, ticks
from flowgraph.diagrams.write.svg.geometry import (
    MARGIN,
    TITLE_HEIGHT,
    WIDTH,
    Rect,
    TextLine,
    baseline,
    cut,
    heading,
    star,
)
from flowgraph.diagrams.write.svg.legend import Entry, legend
from flowgraph.diagrams.write.svg.svg_frame import ALONE, Look, framed, short
from flowgraph.diagrams.write.svg.time_axis import unit_of

PLOT_HEIGHT, LEFT, FOOT = 380.0, 58.0, 44.0
LOG_FROM = 20.0  # times the least seconds: a wider range is drawn by its logarithm
LABELS_PX = (200.0, 110.0)  # of a name, and of one that has found no place
LABELS_AT_MOST = 24
RADII: dict[DotMark, float] = {"best": 8.0, "front": 5.0, "other": 3.0}
NAMES: dict[DotMark, str] = {"best": "the best", "front": "no other is better in both", "other": "other candidates"}
GIB, MIB = float(2**30), float(2**20)

Place = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """A range of numbers along an edge of the plot, even steps or equal factors apart, and its marks."""

    start: float
    end: float
    low: float
    high: float
    log: bool
    ticks: tuple[tuple[float, str], ...]

    def place(self, value: float) -> float:
        """Give where a number is."""
        low, high, at = map(_log, (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return self.start + (self.end - self.start) * (at - low) / (high - low)


@dataclass(frozen=True)
class CandidateDot:
    """A candidate on the picture; `row` is its place in the data, `corners` the shape of the best one."""

    row: int
    mark: DotMark
    x: float
    y: float
    radius: float
    corners: str
    told: str


def scatter_svg(scatter: Scatter, look: Look = ALONE) -> str:
    """Draw candidates as one SVG, 960 units wide."""
    key = legend(_entries(scatter), TITLE_HEIGHT)
    plot = Rect(MARGIN + LEFT, TITLE_HEIGHT + key.height + 20, WIDTH - 2 * MARGIN - LEFT - 10, PLOT_HEIGHT)
    unit, across = _seconds_axis(scatter.dots, plot)
    size, up = _memory_axis(scatter.dots, plot)
    dots = [_shown(row, dot, across, up) for row, dot in enumerate(scatter.dots)]
    return framed(
        "scatter.svg.j2",
        look,
        title=scatter.title,
        about=scatter.about,
        width=WIDTH,
        height=plot.bottom + FOOT + MARGIN / 2,
        heading=heading(scatter.title),
        legend=key,
        plot=plot,
        across=[
            (across.place(at), _tick(across.place(at), plot.bottom + 17, text, "middle")) for at, text in across.ticks
        ],
        up=[
            (up.place(at), _tick(plot.left - 8, baseline(up.place(at), "small"), text, "end")) for at, text in up.ticks
        ],
        names=_axis_names(plot, unit, size, log=across.log),
        front=front_path(dots),
        dots=sorted(dots, key=lambda dot: -list(RADII).index(dot.mark)),
        labels=tuple(_labels(scatter.dots, dots, plot)),
        empty=TextLine(plot.centre, plot.middle, "no candidates", "muted", "middle") if not dots else None,
    )


def _entries(scatter: Scatter) -> list[Entry]:
    """Say what each mark stands for; the best one's name stands here too, where it may have no place beside it."""
    found = {dot.mark: dot.label for dot in reversed(scatter.dots)}
    best = f": {clean(found['best'])}" if found.get("best") else ""
    return [
        Entry(f"dot-{mark}", name + best if mark == "best" else name, sample="star" if mark == "best" else "dot")
        for mark, name in NAMES.items()
        if mark in found
    ]


def _log(value: float) -> float:
    return math.log10(max(value, 1e-12))


def _tick(x: float, y: float, text: str, anchor: str) -> TextLine:
    return TextLine(x, y, text, "small muted", "middle" if anchor == "middle" else "end")


def _axis_names(plot: Rect, unit: str, size: str, *, log: bool) -> tuple[TextLine, ...]:
    across = f"time of a step ({unit}{', log scale' if log else ''})"
    return (
        TextLine(plot.centre, plot.bottom + 36, across, "small", "middle"),
        TextLine(MARGIN, plot.top - 12, f"memory of the fullest device ({size})", "small"),
    )


def _seconds_axis(dots: Sequence[Dot], plot: Rect) -> tuple[str, Axis]:
    seconds = [dot.seconds for dot in dots] or [0.0, 1.0]
    wide = min(seconds) > 0 and max(seconds) / min(seconds) > LOG_FROM
    unit = unit_of(math.sqrt(min(seconds) * max(seconds)) if wide else max(seconds))
    low, high = min(seconds) / unit.seconds, max(seconds) / unit.seconds
    if wide:
        start, end = low / 1.25, high * 1.25
        marks = [(at, number_text(at)) for at in log_ticks(start, end)]
        return unit.name, _scaled(Axis(plot.left, plot.right, start, end, True, tuple(marks)), unit.seconds)
    start, end = padded(low, high)
    return unit.name, _scaled(Axis(plot.left, plot.right, start, end, False, _even(start, end)), unit.seconds)


def _memory_axis(dots: Sequence[Dot], plot: Rect) -> tuple[str, Axis]:
    sizes = [float(dot.memory_bytes) for dot in dots] or [0.0, GIB]
    name, unit = ("GiB", GIB) if max(sizes) >= GIB / 2 else ("MiB", MIB)
    start, end = padded(min(sizes) / unit, max(sizes) / unit)
    return name, _scaled(Axis(plot.bottom, plot.top, start, end, False, _even(start, end)), unit)


def _even(low: float, high: float) -> tuple[tuple[float, str], ...]:
    marks = ticks(low, high, 7)
    gap = marks[1] - marks[0] if len(marks) > 1 else 1.0
    return tuple((mark, number_text(mark, gap)) for mark in marks)


def _scaled(axis: Axis, unit: float) -> Axis:
    """Give an axis in seconds or bytes of one in a larger unit, whose marks keep their text."""
    marks = tuple((at * unit, text) for at, text in axis.ticks)
    return Axis(axis.start, axis.end, axis.low * unit, axis.high * unit, axis.log, marks)


def log_ticks(low: float, high: float) -> tuple[float, ...]:
    """Give the marks of 1, 2 and 5 times powers of ten in a range, or the powers alone in a wide one.

    >>> log_ticks(3, 120), log_ticks(0.5, 2e6)
    ((5.0, 10.0, 20.0, 50.0, 100.0), (1.0, 10.0, 100.0, 1000.0, 10000.0, 100000.0, 1000000.0))
    """
    factors = (1.0, 2.0, 5.0) if high / low < 1e4 else (1.0,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [round(factor * 10.0**power, 12) for power in powers for factor in factors]
    return tuple(mark for mark in marks if low <= mark <= high)


def _shown(row: int, dot: Dot, across: Axis, up: Axis) -> CandidateDot:
    x, y, radius = across.place(dot.seconds), up.place(dot.memory_bytes), RADII[dot.mark]
    told = f"{clean(dot.label)}: {show_s(dot.seconds)} a step, {show_bytes(dot.memory_bytes)} on the fullest device"
    more = "".join(f". {clean(text, 400)}" for text in (dot.about, dot.why) if text)
    return CandidateDot(row, dot.mark, x, y, radius, star(x, y, radius) if dot.mark == "best" else "", told + more)


def front_path(shown: Sequence[CandidateDot]) -> str:
    """Give the line along the front, in steps: each candidate's memory until the next, slower one needs less."""
    front = _front(shown)
    if len(front) < 2:
        return ""
    first, *rest = front
    return f"M{short(first[0])} {short(first[1])}" + "".join(f"H{short(x)}V{short(y)}" for x, y in rest)


def _front(shown: Sequence[CandidateDot]) -> list[Place]:
    return sorted((each.x, each.y) for each in shown if each.mark in ("best", "front"))


def _along_front(shown: Sequence[CandidateDot]) -> Iterator[Rect]:
    """Give what the front's line covers, so that no name lies on it."""
    for (left, upper), (right, lower) in pairwise(_front(shown)):
        yield Rect(left, upper - 1, right - left, 2)
        yield Rect(right - 1, min(upper, lower), 2, abs(lower - upper))


def _labels(dots: Sequence[Dot], shown: Sequence[CandidateDot], plot: Rect) -> Iterator[TextLine]:
    """Name the best, then the front, then others that have a name, wherever a name meets no dot and no other name.

    A name begins with the candidate's rank, which the table beside the picture has too.
    """
    order = sorted(range(len(dots)), key=lambda row: list(RADII).index(dots[row].mark))
    taken = [*map(_around, shown), *_along_front(shown)]
    room = Rect(plot.left + 2, plot.top - 8, plot.width + 8, plot.height + 6)
    placed = 0
    for row in order:
        words = _first_free(dots[row], shown[row], taken, room) if dots[row].label and placed < LABELS_AT_MOST else None
        if words:
            placed += 1
            taken.append(words.rect)
            yield words


def _around(shown: CandidateDot) -> Rect:
    return Rect(shown.x - shown.radius, shown.y - shown.radius, 2 * shown.radius, 2 * shown.radius)


def _first_free(dot: Dot, shown: CandidateDot, taken: Sequence[Rect], room: Rect) -> TextLine | None:
    classes = "strong halo" if dot.mark == "best" else "small halo" if dot.mark == "front" else "small muted halo"
    rooms_px = LABELS_PX[:1] if dot.mark == "other" else LABELS_PX
    sides = _SIDES if dot.mark == "other" else (*_SIDES, _higher)
    name = f"{shown.row + 1} {dot.label}"
    tried = (side(shown, cut(name, room_px, classes), classes) for room_px in rooms_px for side in sides)
    for words in tried:
        if room.holds(words.rect) and not any(words.rect.meets(other) for other in taken):
            return words
    return None


def _right(shown: CandidateDot, text: str, classes: str) -> TextLine:
    return TextLine(shown.x + shown.radius + 5, baseline(shown.y, classes), text, classes)


def _left(shown: CandidateDot, text: str, classes: str) -> TextLine:
    return TextLine(shown.x - shown.radius - 5, baseline(shown.y, classes), text, classes, "end")


def _above(shown: CandidateDot, text: str, classes: str) -> TextLine:
    return TextLine(shown.x, shown.y - shown.radius - 5, text, classes, "middle")


def _below(shown: CandidateDot, text: str, classes: str) -> TextLine:
    return TextLine(shown.x, shown.y + shown.radius + 13, text, classes, "middle")


def _right_above(shown: CandidateDot, text: str, classes: str) -> TextLine:
    return TextLine(shown.x + shown.radius, shown.y - shown.radius - 4, text, classes)


def _right_below(shown: CandidateDot, text: str, classes: str) -> TextLine:
    return TextLine(shown.x + shown.radius, shown.y + shown.radius + 11, text, classes)


def _left_below(shown: CandidateDot, text: str, classes: str) -> TextLine:
    return TextLine(shown.x - shown.radius, shown.y + shown.radius + 11, text, classes, "end")


def _higher(shown: CandidateDot, text: str, classes: str) -> TextLine:
    return TextLine(shown.x - shown.radius, shown.y - shown.radius - 16, text, classes)


_SIDES: tuple[Callable[[CandidateDot, str, str], TextLine], ...] = (
    _right_above,
    _right,
    _right_below,
    _left,
    _above,
    _below,
    _left_below,
)
