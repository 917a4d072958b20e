"""Draw a timeline as an SVG: a lane a pool, its bars by what they do, what is measured under what was forecast.

The geometry is here; `templates/lanes.svg.j2` writes it. A page may zoom it: see the data attributes there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flowgraph.diagrams.model.charts import Bar, BarKind, Lane, Lanes
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.quantities import show_s
from flowgraph.diagrams.write.svg.geometry import (
    LINE,
    MARGIN,
    TITLE_HEIGHT,
    WIDTH,
    Rect,
    TextLine,
    baseline,
    cut,
    heading,
    widest,
    width_of,
)
from flowgraph.diagrams.write.svg.legend import Entry, legend
from flowgraph.diagrams.write.svg.svg_frame import ALONE, Look, framed
from flowgraph.diagrams.write.svg.time_axis import time_ticks, unit_of

BAR_HEIGHT, BAR_GAP, LANE_GAP, POOL_GAP = 24.0, 2.0, 5.0, 14.0
NAME_AT_MOST = 190.0
BAR_PADDING = 5.0
BAR_AT_LEAST = 1.0  # a bar that is narrower would not be seen
LETTERS_AT_LEAST = 4  # of a label that is cut: fewer say nothing
AXIS_HEIGHT = 26.0

# What stands in a bar that is too narrow for its label, and in the legend.
KEYS: Mapping[BarKind, str] = {
    "generate": "G",
    "score": "S",
    "logprob": "L",
    "advantage": "A",
    "update": "U",
    "host": "H",
    "sync": "Y",
    "transfer": "T",
    "offload": "O",
    "idle": "–",
}
NAMES: Mapping[BarKind, str] = {
    "logprob": "log-prob",
    "sync": "weight sync",
    "idle": "idle",
}


@dataclass(frozen=True)
class LaneBar:
    """A bar on the picture: where, in seconds too, what is written in it, and what it tells when pointed at."""

    kind: BarKind
    start_s: float
    end_s: float
    rect: Rect
    words: TextLine
    label: str
    told: str

    @property
    def key(self) -> str:
        """Give the letter of its kind."""
        return KEYS[self.kind]


@dataclass(frozen=True)
class LaneRow:
    """A lane on the picture: its name, whether it was measured in words, its band and its bars."""

    name: TextLine | None
    source: TextLine | None
    told: str
    pool: str
    band: Rect
    spans: tuple[LaneBar, ...]


@dataclass(frozen=True)
class TimeTick:
    """A mark on the axis of time: its seconds, where it is, its text."""

    at_s: float
    x: float
    words: TextLine


@dataclass(frozen=True)
class TimeScale:
    """The axis of time: seconds from 0 to `end_s` between two edges."""

    left: float
    right: float
    end_s: float

    def x(self, seconds: float) -> float:
        """Give the place of a moment."""
        return self.left + (self.right - self.left) * min(max(seconds / self.end_s, 0.0), 1.0)


def lanes_svg(lanes: Lanes, look: Look = ALONE) -> str:
    """Draw a timeline as one SVG, 960 units wide."""
    ordered = by_pool(lanes.lanes)
    key = legend(_entries(ordered), TITLE_HEIGHT)
    scale = _scale(lanes, ordered)
    edges = _step_edges(ordered, scale, TITLE_HEIGHT + key.height + LINE - 3)
    top = TITLE_HEIGHT + key.height + (LINE + 4 if edges else 0.0)
    rows = tuple(_rows(ordered, scale, top, look))
    bottom = (rows[-1].band.bottom if rows else top + BAR_HEIGHT) + LANE_GAP
    return framed(
        "lanes.svg.j2",
        look,
        title=lanes.title,
        about=lanes.about,
        width=WIDTH,
        height=bottom + AXIS_HEIGHT + MARGIN / 2,
        heading=heading(lanes.title),
        legend=key,
        scale=scale,
        unit=unit_of(scale.end_s),
        ticks=_ticks(scale, bottom),
        edges=edges,
        rows=rows,
        top=top,
        bottom=bottom,
    )


def by_pool(lanes: Sequence[Lane]) -> list[Lane]:
    """Put each pool's lanes together, what is forecast first; pools stay in the order in which they come.

    >>> given = [Lane("a", "a", ()), Lane("b", "b", ()), Lane("a", "a", (), measured=True)]
    >>> [(lane.label, lane.measured) for lane in by_pool(given)]
    [('a', False), ('a', True), ('b', False)]
    """
    pools = list(dict.fromkeys(lane.pool for lane in lanes))
    return sorted(lanes, key=lambda lane: (pools.index(lane.pool), lane.measured))


def sub_rows(bars: Sequence[Bar]) -> list[int]:
    """Give each bar the first row in which it meets no other: 0 for all, unless some are at the same time.

    >>> sub_rows([Bar(0, 2, "a", "update"), Bar(1, 3, "b", "update"), Bar(2, 4, "c", "update")])
    [0, 1, 0]
    """
    ends, rows = list[float](), list[int]()
    for bar in bars:
        slack = 1e-6 * abs(bar.end_s)
        row = next((at for at, end in enumerate(ends) if bar.start_s >= end - slack), len(ends))
        ends[row : row + 1] = [max(bar.end_s, bar.start_s)]
        rows.append(row)
    return rows


def _scale(lanes: Lanes, ordered: Sequence[Lane]) -> TimeScale:
    names = widest((cut(lane.label, NAME_AT_MOST, "strong") for lane in ordered), "strong")
    sources = width_of("measured", "small") + 12 if any(lane.measured for lane in ordered) else 0.0
    end_s = max([lanes.end_s, *(bar.end_s for lane in ordered for bar in lane.bars)], default=0.0)
    return TimeScale(MARGIN + max(names, 40.0) + 12 + sources, WIDTH - MARGIN - 18, end_s if end_s > 0 else 1.0)


def _rows(lanes: Sequence[Lane], scale: TimeScale, top: float, look: Look) -> Iterator[LaneRow]:
    paired = any(lane.measured for lane in lanes)
    before: Lane | None = None
    for lane in lanes:
        if before is not None:
            top += LANE_GAP if lane.pool == before.pool else POOL_GAP
        repeated = before is not None and (before.pool, before.label) == (lane.pool, lane.label)
        row = _row(lane, scale, top, look.pool(lane.pool), repeated=repeated, paired=paired)
        yield row
        before, top = lane, row.band.bottom


def _row(lane: Lane, scale: TimeScale, top: float, pool: str, *, repeated: bool, paired: bool) -> LaneRow:
    bars = sorted(lane.bars, key=lambda bar: (bar.start_s, bar.end_s))
    rows = sub_rows(bars)
    count = max(rows, default=0) + 1
    band = Rect(scale.left, top, scale.right - scale.left, count * (BAR_HEIGHT + BAR_GAP) - BAR_GAP)
    spans = [_span(bar, scale, top + row * (BAR_HEIGHT + BAR_GAP)) for bar, row in zip(bars, rows, strict=True)]
    level = baseline(top + BAR_HEIGHT / 2)
    source = "measured" if lane.measured else "forecast"
    name = cut(lane.label, NAME_AT_MOST, "strong")
    return LaneRow(
        name=None if repeated else TextLine(MARGIN, level, name, "strong"),
        source=TextLine(scale.left - 10, level, source, "small muted", "end") if paired else None,
        told=f"{clean(lane.label)}, {source}",
        pool=pool,
        band=band,
        spans=tuple(sorted(spans, key=lambda span: span.rect.width <= BAR_AT_LEAST)),  # the least ones over the others
    )


def _span(bar: Bar, scale: TimeScale, top: float) -> LaneBar:
    left, right = scale.x(bar.start_s), scale.x(bar.end_s)
    rect = Rect(left, top, max(right - left, BAR_AT_LEAST), BAR_HEIGHT)
    label = clean(bar.label)
    seconds = f"{show_s(max(bar.end_s - bar.start_s, 0.0))}, from {show_s(max(bar.start_s, 0.0))}"
    told = f"{clean(bar.about, 400) if bar.about else label} ({seconds})"
    return LaneBar(bar.kind, bar.start_s, bar.end_s, rect, _bar_words(bar, label, rect), label, told)


def _bar_words(bar: Bar, label: str, rect: Rect) -> TextLine:
    """Write a bar's label in it, or its kind's letter where that does not fit, or nothing."""
    classes = "on small"
    level = baseline(rect.middle, classes)
    shown = cut(label, rect.width - 2 * BAR_PADDING, classes)
    if shown == label or len(shown) > LETTERS_AT_LEAST:
        return TextLine(rect.left + BAR_PADDING, level, shown, classes)
    key = KEYS[bar.kind] if width_of(KEYS[bar.kind], classes) + 2 <= rect.width else ""
    return TextLine(rect.centre, level, key, classes, "middle")


def _entries(lanes: Sequence[Lane]) -> list[Entry]:
    found = {bar.kind for lane in lanes for bar in lane.bars}
    return [
        Entry(f"bar-{kind}", NAMES.get(kind, kind), key, "stripes" if kind == "idle" else "box")
        for kind, key in KEYS.items()
        if kind in found
    ]


def _ticks(scale: TimeScale, bottom: float) -> tuple[TimeTick, ...]:
    marks = time_ticks(scale.end_s)
    return tuple(
        TimeTick(at_s, scale.x(at_s), TextLine(scale.x(at_s), bottom + 17, text, "small muted", "middle"))
        for at_s, text in marks
    )


def _step_edges(lanes: Sequence[Lane], scale: TimeScale, level: float) -> tuple[TimeTick, ...]:
    """Give where each step begins, if there are several; a name that would meet the one before it is left out."""
    starts: dict[int, float] = {}
    for bar in (bar for lane in lanes for bar in lane.bars if bar.kind != "idle"):
        starts[bar.step] = min(starts.get(bar.step, bar.start_s), bar.start_s)
    if len(starts) < 2:
        return ()
    edges, free = list[TimeTick](), scale.left
    for step, at_s in sorted(starts.items()):
        words = TextLine(scale.x(at_s) + 4, level, f"step {step}", "small muted")
        fits = free <= words.x and words.rect.right <= WIDTH - MARGIN / 2
        edges.append(TimeTick(at_s, scale.x(at_s), words if fits else TextLine(words.x, level, "", "small muted")))
        free = words.rect.right + 4 if fits else free
    return tuple(edges)
