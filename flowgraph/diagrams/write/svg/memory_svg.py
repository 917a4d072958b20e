"""Draw what devices hold, phase by phase, as an SVG: a panel a pool, against its capacity and what a plan may fill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from flowgraph.cluster.cluster import show_bytes
from flowgraph.diagrams.model.charts import MemoryChart, MemoryColumn, Phase
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.ticks import number_text, ticks
from flowgraph.diagrams.write.palette import TONES
from flowgraph.diagrams.write.svg.geometry import (
    MARGIN,
    TITLE_HEIGHT,
    WIDTH,
    Rect,
    TextLine,
    baseline,
    cut,
    hatching,
    short,
    widest,
    width_of,
)
from flowgraph.diagrams.write.svg.legend import Entry, legend
from flowgraph.diagrams.write.svg.marks import Mark, circle, group, line, path, rect, words
from flowgraph.diagrams.write.svg.svg_frame import ALONE, Look, framed

PLOT_HEIGHT, HEAD_HEIGHT, PANEL_GAP = 180.0, 52.0, 20.0
FOOT = 24.0  # below a plot, for the names of phases
LEFT, RIGHT = 44.0, 66.0  # room for the numbers of the axis, and for the names of the two lines
PEAK_FOOT = 26.0  # of the words on the peak, below the top of a panel
PHASES_IN_A_THIRD, PHASES_IN_A_HALF = 4.3, 8.0  # of a row, for a panel with that many phases
SMALL_SHARE, HEADROOM = 0.15, 1.4  # of the capacity: below this share, a panel ends at this multiple of the peak
TRANSITION_SHARE = 0.6  # of the width of a phase
COLUMN_SHARE, COLUMN_MAX = 0.74, 84.0
GAP_SHARE = 0.8  # of the gap between two columns, for a number
NAME_HEIGHT = 12.0  # a part that is lower has no name in it
LABEL_MAX = 104.0  # of the name of a phase, where it is slanted
SLANT = 0.7072  # of 45 degrees
SLANTED_GAP = 17.0  # slanted names would meet if they began closer
KIB = 1024.0
UNITS = (("B", 1.0), ("KiB", KIB), ("MiB", KIB**2), ("GiB", KIB**3))


@dataclass(frozen=True)
class Bytes:
    """The axis of memory: bytes from 0 to `max_bytes` from the foot of a plot up."""

    plot: Rect
    max_bytes: float

    def y(self, size_bytes: float) -> float:
        """Return the height at which this many bytes end."""
        return self.plot.bottom - self.plot.height * size_bytes / self.max_bytes

    @property
    def unit(self) -> tuple[str, float]:
        """Return the largest unit that the axis reaches, and its bytes."""
        return [unit for unit in UNITS if self.max_bytes >= unit[1]][-1]


def memory_svg(chart: MemoryChart, look: Look = ALONE) -> str:
    """Draw the memory of a step as one SVG, 960 units wide; pools of equal capacity share a scale."""
    phases = [phase for store in chart.stores for phase in store.phases]
    roles = list(dict.fromkeys(role for phase in phases for role, _ in phase.held))
    entries = [
        Entry(f"tone-{place % len(TONES)}", role, str(place + 1), "box" if place < len(TONES) else "hatched")
        for place, role in enumerate(roles)
    ]
    if any(phase.measured_bytes is not None for phase in phases):
        entries.append(Entry("measured", "measured peak", sample="mark"))
    key = legend(entries, TITLE_HEIGHT)
    width, in_a_row = _panel_width(chart)
    labels = [cut(phase.label, LABEL_MAX, "small") for phase in phases]
    slanted = any(_is_tight(store, width) for store in chart.stores)
    foot = 16.0 + widest(labels, "small") * SLANT if slanted else FOOT
    top, height = TITLE_HEIGHT + key.height, HEAD_HEIGHT + PLOT_HEIGHT + foot
    panels, bottom = list[Mark](), top
    for place, store in enumerate(chart.stores):
        row, column = divmod(place, in_a_row)
        cell = Rect(MARGIN + column * (width + PANEL_GAP), top + row * (height + PANEL_GAP), width, height)
        panels.append(_panel(store, cell, _max_bytes(store, chart.stores), roles, look, slanted=slanted))
        bottom = cell.bottom
    size = {"width": WIDTH, "height": float(ceil(bottom + MARGIN))}
    return framed("memory", [key.mark, *panels], look, title=chart.title, about=chart.about, **size)


def _weights(store: MemoryColumn) -> list[float]:
    """Return the width of each phase relative to the others: a transition is narrower."""
    return [TRANSITION_SHARE if phase.transition else 1.0 for phase in store.phases]


def _panel_width(chart: MemoryChart) -> tuple[float, int]:
    """Return the width of a panel and how many stand in a row: as many as their phases leave room for."""
    phases = max((sum(_weights(store)) for store in chart.stores), default=0.0)
    in_a_row = 3 if phases <= PHASES_IN_A_THIRD else 2 if phases <= PHASES_IN_A_HALF else 1
    in_a_row = min(in_a_row, max(len(chart.stores), 1))
    return (WIDTH - 2 * MARGIN - (in_a_row - 1) * PANEL_GAP) / in_a_row, in_a_row


def _is_tight(store: MemoryColumn, width: float) -> bool:
    """Return whether the names of phases do not fit next to each other."""
    weights = _weights(store)
    unit = (width - LEFT - RIGHT) / max(sum(weights), 1.0)
    widths = [width_of(cut(phase.label, LABEL_MAX, "small"), "small") for phase in store.phases]
    return any(name > unit * weight - 4 for name, weight in zip(widths, weights, strict=True))


def _max_bytes(store: MemoryColumn, stores: Sequence[MemoryColumn]) -> float:
    """Return the bytes at the top of a panel, for all pools of its capacity; a capacity far above is left out."""
    equal = [pool for pool in stores if pool.capacity_bytes == store.capacity_bytes]
    peaks = [max(phase.size_bytes, phase.measured_bytes or 0) for pool in equal for phase in pool.phases]
    peak = max(peaks, default=0)
    if 0 < peak < SMALL_SHARE * store.capacity_bytes:
        return HEADROOM * peak
    return 1.04 * max(peak, store.capacity_bytes, store.room_bytes, 1)


def _panel(
    store: MemoryColumn, cell: Rect, max_bytes: float, roles: Sequence[str], look: Look, *, slanted: bool
) -> Mark:
    plot = Rect(cell.left + LEFT, cell.top + HEAD_HEIGHT, cell.width - LEFT - RIGHT, PLOT_HEIGHT)
    scale = Bytes(plot, max_bytes)
    peak = max(store.phases, key=lambda phase: phase.size_bytes, default=None)
    capacity = show_bytes(store.capacity_bytes)
    title, head = f"{clean(store.label)}: {capacity} a device, no phases.", None
    if peak is not None:
        over, share = over_text(peak, store), percent(peak.size_bytes, store.capacity_bytes)
        size = show_bytes(peak.size_bytes)
        title = f"{clean(store.label)}: at most {_listed(f'{size} of {capacity} in {clean(peak.label)}', over)}."
        # Not over the column: near a line, the words would stand above a line that the column does not reach.
        classes = "small alarm strong" if over else "small strong"
        text = cut(_listed(f"peak {size}", share, over), cell.width, classes)
        head = words(TextLine(cell.left, cell.top + PEAK_FOOT, text, classes))
    return group(
        f"store {look.pool(store.pool)}",
        words(TextLine(cell.left, cell.top + 12, cut(store.label, cell.width, "strong"), "strong")),
        words(TextLine(plot.left - 6, plot.top - 14, scale.unit[0], "small muted", "end")),
        *_ticks(scale),
        *_columns(store, scale, cell.left, roles, slanted=slanted),
        line("axis", (plot.left, plot.bottom), (plot.right, plot.bottom)),
        *_levels(store, scale),
        head,
        title=title,
    )


def _listed(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def over_text(phase: Phase, store: MemoryColumn) -> str:
    """Return by how much a phase exceeds the capacity, or what a plan may fill; "" if it exceeds neither.

    >>> store = MemoryColumn("a", "a", (), capacity_bytes=8 * 2**30, room_bytes=7 * 2**30)
    >>> [over_text(Phase("p", (("m", size * 2**30),)), store) for size in (6, 8, 9)]
    ['', 'over the room by 1.0 GiB', 'over by 1.0 GiB']
    """
    if phase.size_bytes > store.capacity_bytes:
        return f"over by {show_bytes(phase.size_bytes - store.capacity_bytes)}"
    if phase.size_bytes > store.room_bytes:
        return f"over the room by {show_bytes(phase.size_bytes - store.room_bytes)}"
    return ""


def percent(part: float, total: float) -> str:
    """Return a part of a total in percent.

    >>> percent(3, 4), percent(1, 0)
    ('75%', '')
    """
    return f"{100 * part / total:.0f}%" if total > 0 else ""


def _ticks(scale: Bytes) -> Iterator[Mark]:
    _, unit_bytes = scale.unit
    marks = ticks(0.0, scale.max_bytes / unit_bytes, 4)
    step = marks[1] - marks[0] if len(marks) > 1 else 1.0
    for mark in marks:
        y = scale.y(mark * unit_bytes)
        yield line("grid", (scale.plot.left, y), (scale.plot.right, y))
        text, classes = number_text(mark, step), "small muted"
        yield words(TextLine(scale.plot.left - 6, baseline(y, classes), text, classes, "end"))


def _levels(store: MemoryColumn, scale: Bytes) -> Iterator[Mark]:
    """Yield the lines of the capacity, its name above, and of what a plan may fill, its name below.

    Where both are far above, the top of the panel says so. Where a plan may fill all, there is one line.
    """
    plot, capacity = scale.plot, show_bytes(store.capacity_bytes)
    capacity_y, room_y = scale.y(store.capacity_bytes), scale.y(store.room_bytes)
    levels: list[tuple[str, float, float, tuple[str, ...]]] = [
        ("capacity", capacity_y, -17, ("capacity", capacity)),
        ("room", room_y, 12, ("plan fills", show_bytes(store.room_bytes))),
    ]
    if store.capacity_bytes > scale.max_bytes:
        levels = [("beyond", plot.top, 4, ("capacity", capacity, "far above"))]
    elif store.room_bytes == store.capacity_bytes:
        del levels[1]
    for kind, y, first, texts in levels:
        lines = [TextLine(plot.right + 6, y + first + 12 * place, text, "small") for place, text in enumerate(texts)]
        yield group(kind, line("line", (plot.left, y), (plot.right + 4, y)), *map(words, lines))


def _columns(store: MemoryColumn, scale: Bytes, left: float, roles: Sequence[str], *, slanted: bool) -> Iterator[Mark]:
    """Yield the phases of a pool; names begin right of `left`, and slanted ones that would meet are left out."""
    weights = _weights(store)
    unit = scale.plot.width / max(sum(weights), 1.0)
    x, free = scale.plot.left, float("-inf")
    for phase, weight in zip(store.phases, weights, strict=True):
        slot = Rect(x, scale.plot.top, unit * weight, scale.plot.height)
        name = _phase_name(phase, slot, left, slanted=slanted)
        fits = not slanted or name.x >= free
        free = name.x + SLANTED_GAP if fits else free
        turn = f"rotate({-45 if slanted else 0} {short(name.x)} {short(name.y)})"
        text = words(name if fits else replace(name, text=""))
        label = Mark("g", {"class": "phase-name", "transform": turn}, children=(text,))
        yield _column(phase, store, scale, slot, roles, label)
        x += unit * weight


def _phase_name(phase: Phase, slot: Rect, left: float, *, slanted: bool) -> TextLine:
    classes = "small muted" if phase.transition else "small"
    if not slanted:
        return TextLine(slot.centre, slot.bottom + 15, cut(phase.label, slot.width, classes), classes, "middle")
    room = min(LABEL_MAX, (slot.centre - left) / SLANT)
    return TextLine(slot.centre + 4, slot.bottom + 12, cut(phase.label, room, classes), classes, "end")


def _column(phase: Phase, store: MemoryColumn, scale: Bytes, slot: Rect, roles: Sequence[str], name: Mark) -> Mark:
    width = min(slot.width * COLUMN_SHARE, COLUMN_MAX)
    top, capacity = scale.y(phase.size_bytes), scale.y(store.capacity_bytes)
    area = Rect(slot.centre - width / 2, top, width, slot.bottom - top)
    classes, marks = f"phase{' passing' if phase.transition else ''}", list[Mark]()
    parts = list(_parts(phase, store, scale, area, roles))
    for part in parts:
        hatch = path("part-hatch", hatching(part.area)) if part.place >= len(TONES) else None
        text = words(part.text) if part.text else None
        marks.append(group(f"tone-{part.place % len(TONES)}", rect("shape", part.area), hatch, text))
    if phase.size_bytes > store.capacity_bytes:
        classes += " over"
        marks.append(path("hatch", hatching(Rect(area.left, top, width, capacity - top), 5.0)))
    marks += [rect("outline", area), *_keys_beside(parts, slot.width - width), name]
    sizes = [f"{clean(role)} {show_bytes(size_bytes)}" for role, size_bytes in phase.held]
    share = percent(phase.size_bytes, store.capacity_bytes)
    size = _listed(f"{show_bytes(phase.size_bytes)} ({share})", over_text(phase, store))
    title = f"{clean(phase.label)}: {size}: {_listed(*sizes) or 'nothing'}"
    if phase.measured_bytes is not None:
        title += f"; measured {show_bytes(phase.measured_bytes)}"
        y = scale.y(phase.measured_bytes)
        ends = (area.left - 3, y), (area.right + 3, y)
        marks += [line("casing", *ends), line("mark", *ends), circle("mark-dot", (area.centre, y), 3.5)]
    return group(classes, *marks, title=title, focus=True)


@dataclass(frozen=True)
class Part:
    """What one role holds in a column: its place in the legend, its area, and the text in it if there is room."""

    place: int
    size_bytes: int
    area: Rect
    text: TextLine | None


def _parts(phase: Phase, store: MemoryColumn, scale: Bytes, column: Rect, roles: Sequence[str]) -> Iterator[Part]:
    """Yield the parts of a column from its foot up; no text lies on a line across it or above the capacity."""
    sizes = (store.capacity_bytes, store.room_bytes, phase.measured_bytes)
    lines = [scale.y(size) for size in sizes if size is not None]
    below = 0
    for role, size in phase.held:
        top = scale.y(below + size)
        area = Rect(column.left, top, column.width, scale.y(below) - top)
        place, below = roles.index(role), below + size
        yield Part(place, size, area, _part_text(role, place, below_line(area, scale.y(store.capacity_bytes)), lines))


def _part_text(role: str, place: int, room: Rect, lines: Sequence[float]) -> TextLine | None:
    """Return a role's name, its number in the legend where the name is too wide, or nothing where no line is free."""
    key, name = str(place + 1), clean(role)
    middle = free_middle(room, lines)
    if middle is None or width_of(key, "small") > room.width:
        return None
    text = name if width_of(name, "small") + 6 <= room.width else key
    return TextLine(room.centre, baseline(middle, "small"), text, "on small", "middle")


def _keys_beside(parts: Sequence[Part], gap: float) -> Iterator[Mark]:
    """Yield the number of each part that is too low for it, beside the column and apart from each other."""
    free = parts[0].area.bottom - NAME_HEIGHT / 2 if parts else 0.0
    for part in parts:
        middle = min(part.area.middle, free)
        key = TextLine(part.area.right + 4, baseline(middle, "small"), str(part.place + 1), "small")
        is_near = part.area.middle - middle < 1.5 * NAME_HEIGHT
        if part.text is None and part.size_bytes and is_near and key.width + 7 <= gap * GAP_SHARE:
            yield words(key)
            free = middle - NAME_HEIGHT


def below_line(area: Rect, y: float) -> Rect:
    """Return the part of a rectangle below a line.

    >>> below_line(Rect(0, 10, 5, 20), 15), below_line(Rect(0, 10, 5, 20), 50).height
    (Rect(left=0, top=15, width=5, height=15), 0.0)
    """
    top = max(area.top, y)
    return Rect(area.left, top, area.width, max(area.bottom - top, 0.0))


def free_middle(area: Rect, lines: Sequence[float]) -> float | None:
    """Return the height nearest to a rectangle's middle at which a name meets none of the lines across it, if any.

    >>> free_middle(Rect(0, 0, 9, 40), []), free_middle(Rect(0, 0, 9, 40), [20]), free_middle(Rect(0, 0, 9, 9), [])
    (20.0, 12.0, None)
    """
    reach = NAME_HEIGHT / 2
    candidates = [area.middle, *(y + side * (reach + 2) for y in lines for side in (-1, 1))]
    free = [
        middle
        for middle in candidates
        if area.top + reach <= middle <= area.bottom - reach and all(abs(y - middle) > reach + 1 for y in lines)
    ]
    return min(free, key=lambda middle: abs(middle - area.middle), default=None)
