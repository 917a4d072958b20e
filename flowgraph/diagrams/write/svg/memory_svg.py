"""Draw what devices hold, phase by phase, as an SVG: a panel a pool, against its capacity and what a plan may fill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from flowgraph.cluster.cluster import show_bytes
from flowgraph.diagrams.model.charts import MemoryChart, MemoryColumn, Phase
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.ticks import labelled_ticks
from flowgraph.diagrams.write.palette import TONES
from flowgraph.diagrams.write.svg.geometry import MARGIN, TITLE_HEIGHT, WIDTH, LinearScale, Rect, short
from flowgraph.diagrams.write.svg.marks import Mark, circle, group, hatching, line, rect, text_mark
from flowgraph.diagrams.write.svg.svg_frame import ALONE, Entry, Look, legend, svg_document
from flowgraph.diagrams.write.svg.text_lines import TextLine, baseline, clean_and_cut, widest, width_of

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
UNITS = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))


def memory_svg(chart: MemoryChart, look: Look = ALONE) -> str:
    """Return the memory of a step as SVG text, 960 pixels wide: a panel for each pool, with a column for each phase.

    `look` says whether the picture is embedded in a page. Pools with devices of equal capacity share a scale.
    """
    phases = [phase for store in chart.stores for phase in store.phases]
    roles = list(dict.fromkeys(role for phase in phases for role, _ in phase.held))
    entries = [
        Entry(f"tone-{place % len(TONES)}", role, str(place + 1), "box" if place < len(TONES) else "hatched")
        for place, role in enumerate(roles)
    ]
    if any(phase.measured_bytes is not None for phase in phases):
        entries.append(Entry("measured", "measured peak", sample="mark"))
    key, key_height = legend(entries, TITLE_HEIGHT)
    # As many panels in a row as their phases leave room for.
    most_phases = max((sum(_weights(store)) for store in chart.stores), default=0.0)
    in_a_row = 3 if most_phases <= PHASES_IN_A_THIRD else 2 if most_phases <= PHASES_IN_A_HALF else 1
    in_a_row = min(in_a_row, max(len(chart.stores), 1))
    width = (WIDTH - 2 * MARGIN - (in_a_row - 1) * PANEL_GAP) / in_a_row
    slanted = False  # unless names of phases do not fit next to each other
    for store in chart.stores:
        unit_px = (width - LEFT - RIGHT) / max(sum(_weights(store)), 1.0)
        widths = [width_of(clean_and_cut(phase.label, LABEL_MAX, "small"), "small") for phase in store.phases]
        slanted |= any(name > unit_px * weight - 4 for name, weight in zip(widths, _weights(store), strict=True))
    names = widest((clean_and_cut(phase.label, LABEL_MAX, "small") for phase in phases), "small")
    height = HEAD_HEIGHT + PLOT_HEIGHT + (16.0 + names * SLANT if slanted else FOOT)
    panels, bottom = list[Mark](), TITLE_HEIGHT + key_height
    for place, store in enumerate(chart.stores):
        row, column = divmod(place, in_a_row)
        top = TITLE_HEIGHT + key_height + row * (height + PANEL_GAP)
        cell = Rect(MARGIN + column * (width + PANEL_GAP), top, width, height)
        # All pools of one capacity end at the same bytes; a capacity far above is left out.
        equal = [pool for pool in chart.stores if pool.capacity_bytes == store.capacity_bytes]
        peaks = [max(phase.size_bytes, phase.measured_bytes or 0) for pool in equal for phase in pool.phases]
        peak = max(peaks, default=0)
        is_small = 0 < peak < SMALL_SHARE * store.capacity_bytes
        max_bytes = HEADROOM * peak if is_small else 1.04 * max(peak, store.capacity_bytes, store.room_bytes, 1)
        panels.append(_Panel(store, cell, max_bytes, roles, slanted).mark(look))
        bottom = cell.bottom
    return svg_document("memory", chart, [key, *panels], look, height=float(ceil(bottom + MARGIN)))


def _weights(store: MemoryColumn) -> list[float]:
    return [TRANSITION_SHARE if phase.transition else 1.0 for phase in store.phases]


def _listed(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def over_text(phase: Phase, store: MemoryColumn) -> str:
    """Return by how much a phase exceeds the capacity of a device, or else what a plan may fill of it, as text.

    The text is "" if the phase exceeds neither.

    >>> store = MemoryColumn("a", "a", (), capacity_bytes=8 * 2**30, room_bytes=7 * 2**30)
    >>> [over_text(Phase("p", (("m", size * 2**30),)), store) for size in (6, 8, 9)]
    ['', 'over the room by 1.0 GiB', 'over by 1.0 GiB']
    """
    if phase.size_bytes > store.capacity_bytes:
        return f"over by {show_bytes(phase.size_bytes - store.capacity_bytes)}"
    if phase.size_bytes > store.room_bytes:
        return f"over the room by {show_bytes(phase.size_bytes - store.room_bytes)}"
    return ""


@dataclass(frozen=True)
class ColumnPart:
    """The memory of one role in a column: the role's index in the legend, its area, and its text if there is room."""

    place: int
    size_bytes: int
    area: Rect
    text: TextLine | None


@dataclass(frozen=True)
class _Panel:
    store: MemoryColumn
    cell: Rect
    max_bytes: float
    roles: Sequence[str]
    slanted: bool

    @cached_property
    def plot(self) -> Rect:
        cell = self.cell
        return Rect(cell.left + LEFT, cell.top + HEAD_HEIGHT, cell.width - LEFT - RIGHT, PLOT_HEIGHT)

    @cached_property
    def scale(self) -> LinearScale:
        return LinearScale(self.plot.bottom, self.plot.top, 0.0, self.max_bytes)

    def share(self, phase: Phase) -> str:
        capacity_bytes = self.store.capacity_bytes
        return f"{100 * phase.size_bytes / capacity_bytes:.0f}%" if capacity_bytes > 0 else ""

    def mark(self, look: Look) -> Mark:
        store, cell, plot = self.store, self.cell, self.plot
        peak = max(store.phases, key=lambda phase: phase.size_bytes, default=None)
        capacity = show_bytes(store.capacity_bytes)
        title, head = f"{clean(store.label)}: {capacity} a device, no phases.", None
        if peak is not None:
            over, size = over_text(peak, store), show_bytes(peak.size_bytes)
            title = f"{clean(store.label)}: at most {_listed(f'{size} of {capacity} in {clean(peak.label)}', over)}."
            # Not over the column: near a line, the words would stand above a line that the column does not reach.
            classes = "small alarm strong" if over else "small strong"
            text = clean_and_cut(_listed(f"peak {size}", self.share(peak), over), cell.width, classes)
            head = text_mark(TextLine(cell.left, cell.top + PEAK_FOOT, text, classes))
        unit, unit_bytes = next(unit for unit in UNITS if self.max_bytes >= unit[1])
        ticks = list[Mark]()
        for number, text in labelled_ticks(0.0, self.max_bytes / unit_bytes):
            y = self.scale.at(number * unit_bytes)
            ticks.append(line("grid", (plot.left, y), (plot.right, y)))
            ticks.append(text_mark(TextLine(plot.left - 6, baseline(y, "small"), text, "small muted", "end")))
        return group(
            f"store {look.pool(store.pool)}",
            text_mark(TextLine(cell.left, cell.top + 12, clean_and_cut(store.label, cell.width, "strong"), "strong")),
            text_mark(TextLine(plot.left - 6, plot.top - 14, unit, "small muted", "end")),
            *ticks,
            *self.columns(),
            line("axis", (plot.left, plot.bottom), (plot.right, plot.bottom)),
            *self.levels(),
            head,
            title=title,
        )

    def levels(self) -> Iterator[Mark]:
        """Yield a named line at the capacity of a device, and one at what a plan may fill unless both are equal.

        A capacity above the panel's top is named there, alone.
        """
        store, plot, capacity = self.store, self.plot, show_bytes(self.store.capacity_bytes)
        levels: list[tuple[str, float, float, tuple[str, ...]]] = [
            ("capacity", self.scale.at(store.capacity_bytes), -17, ("capacity", capacity)),
            ("room", self.scale.at(store.room_bytes), 12, ("plan fills", show_bytes(store.room_bytes))),
        ]
        if store.capacity_bytes > self.max_bytes:
            levels = [("beyond", plot.top, 4, ("capacity", capacity, "far above"))]
        elif store.room_bytes == store.capacity_bytes:
            del levels[1]
        for kind, y, first, texts in levels:
            lines = [
                TextLine(plot.right + 6, y + first + 12 * place, text, "small") for place, text in enumerate(texts)
            ]
            yield group(kind, line("line", (plot.left, y), (plot.right + 4, y)), *map(text_mark, lines))

    def columns(self) -> Iterator[Mark]:
        """Yield a column for each phase of the pool; slanted names that would overlap are left out."""
        weights, plot = _weights(self.store), self.plot
        unit = plot.width / max(sum(weights), 1.0)
        x, free = plot.left, float("-inf")
        for phase, weight in zip(self.store.phases, weights, strict=True):
            slot = Rect(x, plot.top, unit * weight, plot.height)
            classes = "small muted" if phase.transition else "small"
            if self.slanted:
                room = min(LABEL_MAX, (slot.centre - self.cell.left) / SLANT)
                text = clean_and_cut(phase.label, room, classes)
                name = TextLine(slot.centre + 4, slot.bottom + 12, text, classes, "end")
            else:
                text = clean_and_cut(phase.label, slot.width, classes)
                name = TextLine(slot.centre, slot.bottom + 15, text, classes, "middle")
            fits = not self.slanted or name.x >= free
            free = name.x + SLANTED_GAP if fits else free
            turn = f"rotate({-45 if self.slanted else 0} {short(name.x)} {short(name.y)})"
            label = text_mark(name if fits else replace(name, text=""))
            turned = Mark("g", {"class": "phase-name", "transform": turn}, children=(label,))
            yield self.column(phase, slot, turned)
            x += unit * weight

    def column(self, phase: Phase, slot: Rect, name: Mark) -> Mark:
        width, scale, capacity_bytes = min(slot.width * COLUMN_SHARE, COLUMN_MAX), self.scale, self.store.capacity_bytes
        top = scale.at(phase.size_bytes)
        area = Rect(slot.centre - width / 2, top, width, slot.bottom - top)
        classes, marks = f"phase{' passing' if phase.transition else ''}", list[Mark]()
        parts = list(self.parts(phase, area))
        for part in parts:
            hatch = hatching("part-hatch", part.area) if part.place >= len(TONES) else None
            text = text_mark(part.text) if part.text else None
            marks.append(group(f"tone-{part.place % len(TONES)}", rect("shape", part.area), hatch, text))
        if phase.size_bytes > capacity_bytes:
            classes += " over"
            marks.append(hatching("hatch", Rect(area.left, top, width, scale.at(capacity_bytes) - top), 5.0))
        marks.append(rect("outline", area))
        free = parts[0].area.bottom - NAME_HEIGHT / 2 if parts else 0.0
        for part in parts:  # the number of each that is too low for it, right of the column and away from each other
            middle = min(part.area.middle, free)
            key = TextLine(part.area.right + 4, baseline(middle, "small"), str(part.place + 1), "small")
            is_near = part.area.middle - middle < 1.5 * NAME_HEIGHT
            if part.text is None and part.size_bytes and is_near and key.width + 7 <= (slot.width - width) * GAP_SHARE:
                marks.append(text_mark(key))
                free = middle - NAME_HEIGHT
        marks.append(name)
        sizes = [f"{clean(role)} {show_bytes(size_bytes)}" for role, size_bytes in phase.held]
        size = _listed(f"{show_bytes(phase.size_bytes)} ({self.share(phase)})", over_text(phase, self.store))
        title = f"{clean(phase.label)}: {size}: {_listed(*sizes) or 'nothing'}"
        if phase.measured_bytes is not None:
            title += f"; measured {show_bytes(phase.measured_bytes)}"
            y = scale.at(phase.measured_bytes)
            ends = (area.left - 3, y), (area.right + 3, y)
            marks += [line("casing", *ends), line("mark", *ends), circle("mark-dot", (area.centre, y), 3.5)]
        return group(classes, *marks, title=title, focus=True)

    def parts(self, phase: Phase, column: Rect) -> Iterator[ColumnPart]:
        """Yield the parts of a column from its foot up; no text lies on a line across it or above the capacity.

        The text is a role's name, or its number in the legend where the name is too wide.
        """
        sizes = (self.store.capacity_bytes, self.store.room_bytes, phase.measured_bytes)
        lines = [self.scale.at(size) for size in sizes if size is not None]
        below = 0
        for role, size in phase.held:
            top, bottom = self.scale.at(below + size), self.scale.at(below)
            place, below, text = self.roles.index(role), below + size, None
            key, name = str(place + 1), clean(role)
            middle = free_middle(max(top, lines[0]), bottom, lines)
            if middle is not None and width_of(key, "small") <= column.width:
                label = name if width_of(name, "small") + 6 <= column.width else key
                text = TextLine(column.centre, baseline(middle, "small"), label, "on small", "middle")
            yield ColumnPart(place, size, Rect(column.left, top, column.width, bottom - top), text)


def free_middle(top: float, bottom: float, lines: Sequence[float]) -> float | None:
    """Return the y coordinate nearest to the middle of an area where a name overlaps no line; None if there is none.

    `top` and `bottom` are the edges of the area, and `lines` the y coordinates of horizontal lines, in pixels.

    >>> free_middle(0, 40, []), free_middle(0, 40, [20]), free_middle(0, 9, [])
    (20.0, 12.0, None)
    """
    reach, middle = NAME_HEIGHT / 2, top + max(bottom - top, 0.0) / 2
    candidates = [middle, *(y + side * (reach + 2) for y in lines for side in (-1, 1))]
    free = [
        height
        for height in candidates
        if top + reach <= height <= bottom - reach and all(abs(y - height) > reach + 1 for y in lines)
    ]
    return min(free, key=lambda height: abs(height - middle), default=None)
