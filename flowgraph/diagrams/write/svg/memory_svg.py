"""Draw what devices hold, phase by phase, as an SVG: a panel a pool, against its capacity and the room of a plan.

The geometry is here; `templates/memory.svg.j2` writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from flowgraph.cluster.cluster import show_bytes
from flowgraph.diagrams.model.charts import MemoryChart, PoolMemory
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.ticks import number_text, ticks
from flowgraph.diagrams.write.palette import TONES
from flowgraph.diagrams.write.svg.geometry import (
    MARGIN,
    TITLE_HEIGHT,
    WIDTH,
    Anchor,
    Rect,
    TextLine,
    baseline,
    cut,
    heading,
    widest,
    width_of,
)
from flowgraph.diagrams.write.svg.legend import Entry, Sample, legend
from flowgraph.diagrams.write.svg.memory_columns import (
    LABEL_AT_MOST,
    SLANT,
    Bytes,
    Column,
    columns_of,
    over_text,
    percent,
    tone_of,
    weights_of,
)
from flowgraph.diagrams.write.svg.svg_frame import ALONE, Look, framed

PLOT_HEIGHT, HEAD_HEIGHT, PANEL_GAP = 180.0, 52.0, 20.0
FOOT = 24.0  # below a plot, for the names of phases
LEFT, RIGHT = 44.0, 66.0  # room for the numbers of the axis, and for the names of the two lines
PEAK_FOOT = 26.0  # of the words on the peak, below the top of a panel
PHASES_IN_A_THIRD, PHASES_IN_A_HALF = 4.3, 8.0  # of a row, for a panel with that many phases
SMALL_SHARE, HEADROOM = 0.15, 1.4  # of the capacity: where less is held, a panel ends so far above what is held
KIB = 1024.0
UNITS = (("B", 1.0), ("KiB", KIB), ("MiB", KIB**2), ("GiB", KIB**3))


@dataclass(frozen=True)
class MemoryMark:
    """A mark on the axis of memory: its height, and its number."""

    y: float
    words: TextLine


@dataclass(frozen=True)
class MemoryLevel:
    """A line across a panel: its height, and what it says."""

    y: float
    kind: str
    lines: tuple[TextLine, ...]


@dataclass(frozen=True)
class MemoryPanel:
    """A pool on the picture."""

    pool: str
    told: str
    name: TextLine
    plot: Rect
    unit: TextLine
    ticks: tuple[MemoryMark, ...]
    levels: tuple[MemoryLevel, ...]
    columns: tuple[Column, ...]
    peak: tuple[TextLine, ...]


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
        height=ceil(max((cell.bottom for cell in cells), default=top) + MARGIN),
        heading=heading(chart.title),
        legend=key,
        panels=panels,
    )


def _entries(chart: MemoryChart, names: Sequence[str]) -> list[Entry]:
    roles = [Entry(f"tone-{tone_of(at)}", name, str(at + 1), _sample(at)) for at, name in enumerate(names)]
    measured = any(phase.measured_bytes is not None for store in chart.stores for phase in store.phases)
    return [*roles, *([Entry("measured", "measured peak", sample="mark")] if measured else [])]


def _sample(at: int) -> Sample:
    return "hatched" if at >= len(TONES) else "box"


def _panel_width(chart: MemoryChart) -> tuple[float, int]:
    """Give the width of a panel and how many stand in a row: as many as their phases leave room for."""
    most = max((sum(weights_of(store)) for store in chart.stores), default=0.0)
    columns = 3 if most <= PHASES_IN_A_THIRD else 2 if most <= PHASES_IN_A_HALF else 1
    columns = min(columns, max(len(chart.stores), 1))
    return (WIDTH - 2 * MARGIN - (columns - 1) * PANEL_GAP) / columns, columns


def _cell(at: int, columns: int, top: float, width: float, height: float) -> Rect:
    across, down = at % columns * (width + PANEL_GAP), at // columns * (height + PANEL_GAP)
    return Rect(MARGIN + across, top + down, width, height)


def _is_tight(store: PoolMemory, width: float) -> bool:
    """Say whether the names of phases do not fit beside each other."""
    weights = weights_of(store)
    unit = (width - LEFT - RIGHT) / max(sum(weights), 1.0)
    wide = [width_of(cut(phase.label, LABEL_AT_MOST, "small"), "small") for phase in store.phases]
    return any(each > unit * weight - 4 for each, weight in zip(wide, weights, strict=True))


def _slanted_foot(chart: MemoryChart) -> float:
    """Give the room that the slanted names of phases need below the plots."""
    labels = [cut(phase.label, LABEL_AT_MOST, "small") for store in chart.stores for phase in store.phases]
    return 16.0 + widest(labels, "small") * SLANT


def _most_bytes(store: PoolMemory, stores: Sequence[PoolMemory]) -> float:
    """Give the bytes at the top of a panel: of all that have its capacity, which itself is left out if far above."""
    alike = [each for each in stores if each.capacity_bytes == store.capacity_bytes]
    sizes = [size for each in alike for phase in each.phases for size in (phase.size_bytes, phase.measured_bytes or 0)]
    held = max(sizes, default=0)
    if 0 < held < SMALL_SHARE * store.capacity_bytes:
        return HEADROOM * held
    return 1.04 * max(held, store.capacity_bytes, store.room_bytes, 1)


def _panel(
    store: PoolMemory, cell: Rect, most_bytes: float, names: Sequence[str], look: Look, *, slanted: bool
) -> MemoryPanel:
    plot = Rect(cell.left + LEFT, cell.top + HEAD_HEIGHT, cell.width - LEFT - RIGHT, PLOT_HEIGHT)
    scale = Bytes(plot, most_bytes)
    columns = columns_of(store, scale, cell.left, names, slanted=slanted)
    return MemoryPanel(
        pool=look.pool(store.pool),
        told=_told(store),
        name=TextLine(cell.left, cell.top + 12, cut(store.label, cell.width, "strong"), "strong"),
        plot=plot,
        unit=TextLine(plot.left - 6, plot.top - 14, _unit(scale)[0], "small muted", "end"),
        ticks=_ticks(scale),
        levels=_levels(store, scale),
        columns=columns,
        peak=_peak(store, cell),
    )


def _told(store: PoolMemory) -> str:
    peak = max(store.phases, key=lambda phase: phase.size_bytes, default=None)
    name, capacity = clean(store.label), show_bytes(store.capacity_bytes)
    if peak is None:
        return f"{name}: {capacity} a device, no phases."
    over = over_text(peak, store)
    most = f"at most {show_bytes(peak.size_bytes)} of {capacity} in {clean(peak.label)}"
    return f"{name}: {most}{', ' + over if over else ''}."


def _unit(scale: Bytes) -> tuple[str, float]:
    return [each for each in UNITS if scale.most_bytes >= each[1]][-1]


def _ticks(scale: Bytes) -> tuple[MemoryMark, ...]:
    _, factor = _unit(scale)
    marks = ticks(0.0, scale.most_bytes / factor, 4)
    gap = marks[1] - marks[0] if len(marks) > 1 else 1.0
    x, classes = scale.plot.left - 6, "small muted"
    levels = [(scale.y(mark * factor), number_text(mark, gap)) for mark in marks]
    return tuple(MemoryMark(y, TextLine(x, baseline(y, classes), text, classes, "end")) for y, text in levels)


def _levels(store: PoolMemory, scale: Bytes) -> tuple[MemoryLevel, ...]:
    """Give the two lines with their names: that of the capacity above its line, that of the room below.

    Where both are far above, the top of the panel says so. Where a plan fills all, there is one line.
    """
    x, top = scale.plot.right + 6, scale.plot.top
    if store.capacity_bytes > scale.most_bytes:
        above = _lines(x, top + 4, ("capacity", show_bytes(store.capacity_bytes), "far above"))
        return (MemoryLevel(top, "beyond", above),)
    capacity, room = scale.y(store.capacity_bytes), scale.y(store.room_bytes)
    above = _lines(x, capacity - 5 - 12, ("capacity", show_bytes(store.capacity_bytes)))
    if store.room_bytes == store.capacity_bytes:
        return (MemoryLevel(capacity, "capacity", above),)
    below = _lines(x, room + 12, ("plan fills", show_bytes(store.room_bytes)))
    return MemoryLevel(capacity, "capacity", above), MemoryLevel(room, "room", below)


def _lines(x: float, y: float, texts: Sequence[str], anchor: Anchor = "start") -> tuple[TextLine, ...]:
    return tuple(TextLine(x, y + 12 * at, text, "small", anchor) for at, text in enumerate(texts))


def _peak(store: PoolMemory, cell: Rect) -> tuple[TextLine, ...]:
    """Name the highest column under the pool's name: its bytes and percent, and by how much it is over.

    Not over the column: where a line is near, the words would stand above a line that the column does not reach.
    """
    if not store.phases:
        return ()
    phase = max(store.phases, key=lambda each: each.size_bytes)
    share, over = percent(phase.size_bytes, store.capacity_bytes), over_text(phase, store)
    told = f"peak {show_bytes(phase.size_bytes)}{', ' + share if share else ''}{', ' + over if over else ''}"
    classes = "small alarm strong" if over else "small strong"
    return (TextLine(cell.left, cell.top + PEAK_FOOT, cut(told, cell.width, classes), classes),)
