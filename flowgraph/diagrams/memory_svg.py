"""Draw what devices hold, phase by phase, as an SVG: a panel a pool, against its capacity and the room of a plan.

The geometry is here; `templates/memory.svg.j2` writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowgraph.cluster import show_bytes
from flowgraph.diagrams.charts import MemoryChart, Phase, Store
from flowgraph.diagrams.geometry import (
    MARGIN,
    TITLE_HEIGHT,
    WIDTH,
    Anchor,
    Rect,
    Words,
    baseline,
    cut,
    hatching,
    heading,
    widest,
    width_of,
)
from flowgraph.diagrams.labels import clean
from flowgraph.diagrams.legend import Entry, Sample, legend
from flowgraph.diagrams.palette import TONES
from flowgraph.diagrams.svg_frame import ALONE, Look, framed
from flowgraph.diagrams.ticks import number_text, ticks

PLOT_HEIGHT, HEAD_HEIGHT, PANEL_GAP = 180.0, 58.0, 20.0
FOOT = 24.0  # below a plot, for the names of phases
LEFT, RIGHT = 44.0, 66.0  # room for the numbers of the axis, and for the names of the two lines
TRANSITION_SHARE = 0.6  # of the width of a phase
COLUMN_SHARE, COLUMN_AT_MOST = 0.74, 84.0
PEAK_LINE = 13.0
NAME_HEIGHT = 12.0  # a part that is lower has no name in it
PHASES_IN_A_THIRD, PHASES_IN_A_HALF = 4.3, 8.0  # of a row, for a panel with that many phases
LABEL_AT_MOST = 104.0  # of the name of a phase, where it is slanted
SLANT = 0.7072  # of 45 degrees
KIB = 1024.0
UNITS = (("B", 1.0), ("KiB", KIB), ("MiB", KIB**2), ("GiB", KIB**3))


@dataclass(frozen=True)
class Segment:
    """One role's part of a column."""

    tone: int
    rect: Rect
    words: Words | None
    hatch: str
    told: str


@dataclass(frozen=True)
class Column:
    """A phase on the picture; `over` is the part beyond the capacity, if any."""

    rect: Rect
    segments: tuple[Segment, ...]
    passing: bool
    over: Rect | None
    hatch: str
    label: Words
    slanted: bool
    measured: float | None
    told: str


@dataclass(frozen=True)
class Mark:
    """A mark on the axis of memory: its height, and its number."""

    y: float
    words: Words


@dataclass(frozen=True)
class Level:
    """A line across a panel: its height, and what it says."""

    y: float
    kind: str
    lines: tuple[Words, ...]


@dataclass(frozen=True)
class Panel:
    """A pool on the picture."""

    pool: str
    told: str
    name: Words
    about: Words
    plot: Rect
    unit: Words
    ticks: tuple[Mark, ...]
    levels: tuple[Level, ...]
    columns: tuple[Column, ...]
    peak: tuple[Words, ...]


@dataclass(frozen=True)
class Bytes:
    """The axis of memory: bytes from 0 to `most_bytes` from the foot of a plot up."""

    plot: Rect
    most_bytes: float

    def y(self, size_bytes: float) -> float:
        """Give the height at which so many bytes end."""
        return self.plot.bottom - self.plot.height * size_bytes / self.most_bytes


def memory_svg(chart: MemoryChart, look: Look = ALONE) -> str:
    """Draw the memory of a step as one SVG, 960 units wide; pools of equal capacity share a scale."""
    names = list(dict.fromkeys(name for store in chart.stores for phase in store.phases for name, _ in phase.held))
    key = legend(_entries(chart, names), TITLE_HEIGHT)
    top = TITLE_HEIGHT + key.height
    width, columns = _panel_width(chart)
    slanted = any(_is_tight(store, width) for store in chart.stores)
    height = HEAD_HEIGHT + PLOT_HEIGHT + (_slanted_foot(chart) if slanted else FOOT)
    cells = [_cell(at, columns, top, width, height) for at in range(len(chart.stores))]
    most = {store: _most_bytes(store, chart.stores) for store in chart.stores}
    panels = [
        _panel(store, cell, most[store], names, look, slanted=slanted)
        for store, cell in zip(chart.stores, cells, strict=True)
    ]
    return framed(
        "memory.svg.j2",
        look,
        title=chart.title,
        about=chart.about,
        width=WIDTH,
        height=max((cell.bottom for cell in cells), default=top) + MARGIN,
        heading=heading(chart.title),
        legend=key,
        panels=panels,
    )


def over_text(phase: Phase, store: Store) -> str:
    """Say by how much a phase exceeds what there is; nothing if it does not.

    >>> store = Store("a", "a", (), capacity_bytes=8 * 2**30, room_bytes=7 * 2**30)
    >>> [over_text(Phase("p", (("m", size * 2**30),)), store) for size in (6, 8, 9)]
    ['', 'over the room by 1.0 GiB', 'over by 1.0 GiB']
    """
    if phase.size_bytes > store.capacity_bytes:
        return f"over by {show_bytes(phase.size_bytes - store.capacity_bytes)}"
    if phase.size_bytes > store.room_bytes:
        return f"over the room by {show_bytes(phase.size_bytes - store.room_bytes)}"
    return ""


def percent(part: float, whole: float) -> str:
    """Write a part of a whole in percent.

    >>> percent(3, 4), percent(1, 0)
    ('75%', '')
    """
    return f"{100 * part / whole:.0f}%" if whole > 0 else ""


def _entries(chart: MemoryChart, names: Sequence[str]) -> list[Entry]:
    roles = [Entry(f"tone-{_tone(at)}", name, str(at + 1), _sample(at)) for at, name in enumerate(names)]
    measured = any(phase.measured_bytes is not None for store in chart.stores for phase in store.phases)
    return [*roles, *([Entry("measured", "measured peak", sample="mark")] if measured else [])]


def _tone(at: int) -> int:
    return at % len(TONES)


def _sample(at: int) -> Sample:
    return "hatched" if at >= len(TONES) else "box"


def _weights(store: Store) -> list[float]:
    return [TRANSITION_SHARE if phase.transition else 1.0 for phase in store.phases]


def _panel_width(chart: MemoryChart) -> tuple[float, int]:
    """Give the width of a panel and how many stand in a row: as many as their phases leave room for."""
    most = max((sum(_weights(store)) for store in chart.stores), default=0.0)
    columns = 3 if most <= PHASES_IN_A_THIRD else 2 if most <= PHASES_IN_A_HALF else 1
    columns = min(columns, max(len(chart.stores), 1))
    return (WIDTH - 2 * MARGIN - (columns - 1) * PANEL_GAP) / columns, columns


def _cell(at: int, columns: int, top: float, width: float, height: float) -> Rect:
    across, down = at % columns * (width + PANEL_GAP), at // columns * (height + PANEL_GAP)
    return Rect(MARGIN + across, top + down, width, height)


def _is_tight(store: Store, width: float) -> bool:
    """Say whether the names of phases do not fit beside each other."""
    weights = _weights(store)
    unit = (width - LEFT - RIGHT) / max(sum(weights), 1.0)
    wide = [width_of(cut(phase.label, LABEL_AT_MOST, "small"), "small") for phase in store.phases]
    return any(each > unit * weight - 4 for each, weight in zip(wide, weights, strict=True))


def _slanted_foot(chart: MemoryChart) -> float:
    """Give the room that the slanted names of phases need below the plots."""
    labels = [cut(phase.label, LABEL_AT_MOST, "small") for store in chart.stores for phase in store.phases]
    return FOOT + widest(labels, "small") * SLANT


def _most_bytes(store: Store, stores: Sequence[Store]) -> float:
    """Give the bytes at the top of a panel: of all that have its capacity."""
    alike = [each for each in stores if each.capacity_bytes == store.capacity_bytes]
    sizes = [size for each in alike for phase in each.phases for size in (phase.size_bytes, phase.measured_bytes or 0)]
    return 1.04 * max([*sizes, store.capacity_bytes, store.room_bytes, 1])


def _panel(store: Store, cell: Rect, most_bytes: float, names: Sequence[str], look: Look, *, slanted: bool) -> Panel:
    plot = Rect(cell.left + LEFT, cell.top + HEAD_HEIGHT, cell.width - LEFT - RIGHT, PLOT_HEIGHT)
    scale = Bytes(plot, most_bytes)
    columns = _columns(store, scale, cell.left, names, slanted=slanted)
    return Panel(
        pool=look.pool(store.pool),
        told=_told(store),
        name=Words(cell.left, cell.top + 12, cut(store.label, cell.width, "strong"), "strong"),
        about=Words(cell.left, cell.top + 27, "on each device, phase by phase", "small muted"),
        plot=plot,
        unit=Words(plot.left - 6, plot.top - 14, _unit(scale)[0], "small muted", "end"),
        ticks=_ticks(scale),
        levels=_levels(store, scale),
        columns=columns,
        peak=_peak(store, columns, scale),
    )


def _told(store: Store) -> str:
    peak = max(store.phases, key=lambda phase: phase.size_bytes, default=None)
    name, capacity = clean(store.label), show_bytes(store.capacity_bytes)
    if peak is None:
        return f"{name}: {capacity} a device, no phases."
    over = over_text(peak, store)
    most = f"at most {show_bytes(peak.size_bytes)} of {capacity} in {clean(peak.label)}"
    return f"{name}: {most}{', ' + over if over else ''}."


def _unit(scale: Bytes) -> tuple[str, float]:
    return [each for each in UNITS if scale.most_bytes >= each[1]][-1]


def _ticks(scale: Bytes) -> tuple[Mark, ...]:
    _, factor = _unit(scale)
    marks = ticks(0.0, scale.most_bytes / factor, 4)
    gap = marks[1] - marks[0] if len(marks) > 1 else 1.0
    x, classes = scale.plot.left - 6, "small muted"
    levels = [(scale.y(mark * factor), number_text(mark, gap)) for mark in marks]
    return tuple(Mark(y, Words(x, baseline(y, classes), text, classes, "end")) for y, text in levels)


def _levels(store: Store, scale: Bytes) -> tuple[Level, ...]:
    """Give the two lines with their names: that of the capacity above its line, that of the room below."""
    x, capacity, room = scale.plot.right + 6, scale.y(store.capacity_bytes), scale.y(store.room_bytes)
    above = _lines(x, capacity - 5 - 12, ("capacity", show_bytes(store.capacity_bytes)))
    below = _lines(x, room + 12, ("room", show_bytes(store.room_bytes)))
    return Level(capacity, "capacity", above), Level(room, "room", below)


def _lines(x: float, y: float, texts: Sequence[str], anchor: Anchor = "start") -> tuple[Words, ...]:
    return tuple(Words(x, y + 12 * at, text, "small", anchor) for at, text in enumerate(texts))


def _columns(store: Store, scale: Bytes, left: float, names: Sequence[str], *, slanted: bool) -> tuple[Column, ...]:
    weights = _weights(store)
    unit = scale.plot.width / max(sum(weights), 1.0)
    columns, x = list[Column](), scale.plot.left
    for phase, weight in zip(store.phases, weights, strict=True):
        columns.append(_column(phase, store, scale, Rect(x, 0, unit * weight, 0), left, names, slanted=slanted))
        x += unit * weight
    return tuple(columns)


def _column(
    phase: Phase, store: Store, scale: Bytes, slot: Rect, left: float, names: Sequence[str], *, slanted: bool
) -> Column:
    width = min(slot.width * COLUMN_SHARE, COLUMN_AT_MOST)
    top = scale.y(phase.size_bytes)
    rect = Rect(slot.centre - width / 2, top, width, scale.plot.bottom - top)
    capacity = scale.y(store.capacity_bytes)
    lines = [
        scale.y(size) for size in (store.capacity_bytes, store.room_bytes, phase.measured_bytes) if size is not None
    ]
    over = Rect(rect.left, top, width, capacity - top) if phase.size_bytes > store.capacity_bytes else None
    return Column(
        rect=rect,
        segments=_segments(phase, scale, rect, names, lines, store.capacity_bytes),
        passing=phase.transition,
        over=over,
        hatch=hatching(over, 5.0) if over else "",
        label=_phase_label(phase, scale.plot.bottom, slot, left, slanted=slanted),
        slanted=slanted,
        measured=None if phase.measured_bytes is None else scale.y(phase.measured_bytes),
        told=_phase_told(phase, store),
    )


def _phase_label(phase: Phase, bottom: float, slot: Rect, left: float, *, slanted: bool) -> Words:
    classes = "small muted" if phase.transition else "small"
    if not slanted:
        return Words(slot.centre, bottom + 15, cut(phase.label, slot.width, classes), classes, "middle")
    room = min(LABEL_AT_MOST, (slot.centre - left) / SLANT)
    return Words(slot.centre + 4, bottom + 12, cut(phase.label, room, classes), classes, "end")


def _phase_told(phase: Phase, store: Store) -> str:
    share = percent(phase.size_bytes, store.capacity_bytes)
    held = ", ".join(f"{clean(name)} {show_bytes(size)}" for name, size in phase.held) or "nothing"
    measured = f"; measured {show_bytes(phase.measured_bytes)}" if phase.measured_bytes is not None else ""
    over = over_text(phase, store)
    told = f"{clean(phase.label)}: {show_bytes(phase.size_bytes)} ({share}){', ' + over if over else ''}"
    return f"{told}: {held}{measured}"


def _segments(
    phase: Phase, scale: Bytes, column: Rect, names: Sequence[str], lines: Sequence[float], limit_bytes: int
) -> tuple[Segment, ...]:
    segments, below = list[Segment](), 0
    for name, size in phase.held:
        top = scale.y(below + size)
        rect = Rect(column.left, top, column.width, scale.y(below) - top)
        at, below = names.index(name), below + size
        hatch = hatching(rect) if at >= len(TONES) else ""
        words = _segment_words(name, at, below_line(rect, scale.y(limit_bytes)), lines)
        segments.append(Segment(_tone(at), rect, words, hatch, clean(name)))
    return tuple(segments)


def below_line(rect: Rect, y: float) -> Rect:
    """Give what of a rectangle is below a line, where names are not on the hatching.

    >>> below_line(Rect(0, 10, 5, 20), 15), below_line(Rect(0, 10, 5, 20), 50).height
    (Rect(left=0, top=15, width=5, height=15), 0.0)
    """
    top = max(rect.top, y)
    return Rect(rect.left, top, rect.width, max(rect.bottom - top, 0.0))


def _segment_words(name: str, at: int, rect: Rect, lines: Sequence[float]) -> Words | None:
    """Write a role's name in its part, or else its number in the legend, or nothing where no line leaves room."""
    key, whole = str(at + 1), clean(name)
    middle = free_middle(rect, lines)
    if middle is None or width_of(key, "small") > rect.width:
        return None
    text = whole if width_of(whole, "small") + 6 <= rect.width else key
    return Words(rect.centre, baseline(middle, "small"), text, "on small", "middle")


def free_middle(rect: Rect, lines: Sequence[float]) -> float | None:
    """Give the height nearest to a rectangle's middle where a name meets none of the lines across it, if there is one.

    >>> free_middle(Rect(0, 0, 9, 40), []), free_middle(Rect(0, 0, 9, 40), [20]), free_middle(Rect(0, 0, 9, 9), [])
    (20.0, 12.0, None)
    """
    reach = NAME_HEIGHT / 2
    tried = [rect.middle, *(line + side * (reach + 2) for line in lines for side in (-1, 1))]
    free = [
        at
        for at in tried
        if rect.top + reach <= at <= rect.bottom - reach and all(abs(line - at) > reach + 1 for line in lines)
    ]
    return min(free, key=lambda at: abs(at - rect.middle), default=None)


def _peak(store: Store, columns: Sequence[Column], scale: Bytes) -> tuple[Words, ...]:
    """Name the highest column over it: its bytes and percent, and by how much it is over."""
    if not columns:
        return ()
    at = max(range(len(columns)), key=lambda place: store.phases[place].size_bytes)
    phase, rect = store.phases[at], columns[at].rect
    texts = _peak_texts(phase, store)
    marks = [each.measured - 6 for each in columns if each.measured is not None]
    high = NAME_HEIGHT + PEAK_LINE * (len(texts) - 1)
    foot = above_lines(min([rect.top, *marks]) - 4, high, [scale.y(store.room_bytes), scale.y(store.capacity_bytes)])
    levels = [foot - 2 - PEAK_LINE * after for after in reversed(range(len(texts)))]
    return tuple(
        Words(_clamped(rect.centre, width_of(text, classes), scale.plot), y, text, classes, "middle")
        for y, (text, classes) in zip(levels, texts, strict=True)
    )


def _peak_texts(phase: Phase, store: Store) -> list[tuple[str, str]]:
    share = percent(phase.size_bytes, store.capacity_bytes)
    told = f"peak {show_bytes(phase.size_bytes)}{', ' + share if share else ''}"
    over = over_text(phase, store)
    return [(told, "small strong halo"), *([(over, "small alarm strong halo")] if over else [])]


def above_lines(foot: float, high: float, lines: Sequence[float]) -> float:
    """Move a text of some height up until it meets none of the lines across, and give where it ends then.

    >>> above_lines(100, 12, [120, 95, 84]), above_lines(100, 12, [50])
    (80.0, 100)
    """
    for line in sorted(lines, reverse=True):
        if foot - high - 2 < line < foot + 2:
            foot = line - 4.0
    return foot


def _clamped(centre: float, width: float, plot: Rect) -> float:
    """Move a text so that it does not begin before its plot, nor end after it."""
    return max(plot.left + width / 2, min(centre, plot.right - width / 2))
