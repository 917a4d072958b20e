"""Draw for a terminal what has a scale: lanes of time, and memory by phase."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from flowgraph.cluster.cluster import show_bytes
from flowgraph.diagrams.model.charts import Bar, Lane, Lanes, MemoryChart, MemoryColumn, Phase
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.ticks import number_text
from flowgraph.diagrams.write.palette import BAR_INKS, STATUS_INKS, TEXT

IDLE, FULL, FREE = "·", "█", "·"
COLUMNS_MIN = 10  # of bars: fewer show nothing
_BAR_COLUMNS_MAX = 40  # of memory: its words need the rest
_TOO_MUCH = STATUS_INKS["removed"]


def lane_lines(lanes: Lanes, width: int) -> Iterator[Text]:
    """Draw each lane to scale, `│` at the end of each bar and dots where it is idle; beneath, the scale and the waits.

    A bar too short for its label shows as much of it as fits, and a bar of less than a column takes one if there is
    room.
    """
    labels = [clean(lane.label) + (" (measured)" if lane.measured else "") for lane in lanes.lanes]
    margin = max(map(cell_len, labels), default=0)
    columns = max(width - margin - 1, COLUMNS_MIN)
    for label, lane in zip(labels, lanes.lanes, strict=True):
        yield Text.assemble(set_cell_size(label, margin), " ", _lane(lane, lanes.end_s, columns))
    yield Text(" " * (margin + 1) + _scale(lanes.end_s, columns))
    for label, lane in zip(labels, lanes.lanes, strict=True):
        yield from _waits(set_cell_size(label, margin), lane, lanes.end_s)


def _lane(lane: Lane, end_s: float, columns: int) -> Text:
    columns_per_s, text = columns / end_s if end_s > 0 else 0.0, Text()
    for bar in (bar for bar in lane.bars if bar.kind != "idle"):
        start = max(text.cell_len, min(columns, round(bar.start_s * columns_per_s)))
        stop = min(columns, max(start + 1, round(bar.end_s * columns_per_s)))
        text.append(IDLE * (start - text.cell_len))
        if stop > start:
            text.append(_bar(bar, stop - start), f"{TEXT} on {BAR_INKS[bar.kind].fill}")
    return text.append(IDLE * (columns - text.cell_len))


def _bar(bar: Bar, columns: int) -> str:
    """Write a bar's label in this many columns, the last of them its end."""
    label = clean(bar.label)
    if columns == 1:
        return label[:1] if cell_len(label[:1]) == 1 else "│"
    room = columns - 1
    return (set_cell_size(label, room) if cell_len(label) >= room else label + "─" * (room - cell_len(label))) + "│"


def _scale(end_s: float, columns: int) -> str:
    """Write the first, the last and, if there is room, the middle second under their columns.

    >>> _scale(12.0, 30)
    '0                         12 s'
    """
    middle, last = number_text(end_s / 2) if columns > 40 else "", f"{number_text(end_s)} s"
    line = "0".ljust(max(2, columns // 2 - len(middle) // 2)) + middle
    return line.ljust(max(len(line) + 1, columns - len(last))) + last


def _waits(label: str, lane: Lane, end_s: float) -> Iterator[Text]:
    """Yield the share of time in which a lane is busy, and what it waits for, the longest first."""
    waits_s = dict[str, float]()
    for bar in (bar for bar in lane.bars if bar.kind == "idle"):
        why = clean(bar.about) if bar.about else ""
        waits_s[why] = waits_s.get(why, 0.0) + bar.end_s - bar.start_s
    total_s = end_s if end_s > 0 else 1.0
    yield Text(f"{label}  busy {1 - sum(waits_s.values()) / total_s:6.1%}")
    for why, seconds in sorted(waits_s.items(), key=lambda wait: -wait[1]):
        yield Text(f"{' ' * cell_len(label)}  idle {seconds / total_s:6.1%}  {number_text(seconds)} s  {why}")


def memory_lines(chart: MemoryChart, width: int) -> Iterator[Text]:
    """Draw a bar for each phase of each pool, full at the capacity; beneath, what does not fit and the parts."""
    for store in chart.stores:
        room = f", {show_bytes(store.room_bytes)} for a plan" if store.room_bytes != store.capacity_bytes else ""
        yield Text.assemble((clean(store.label), "bold"), f"  {show_bytes(store.capacity_bytes)} a device{room}")
        labels = [("→ " if phase.transition else "  ") + clean(phase.label) for phase in store.phases]
        margin = max(map(cell_len, labels), default=0)
        columns = min(_BAR_COLUMNS_MAX, max(width - margin - 30, COLUMNS_MIN))
        for label, phase in zip(labels, store.phases, strict=True):
            yield Text.assemble(set_cell_size(label, margin), " ", *_phase(store, phase, columns))
            yield from (Text(" " * (margin + 1) + text, look) for text, look in _beneath(store, phase))


def _phase(store: MemoryColumn, phase: Phase, columns: int) -> Iterator[tuple[str, str]]:
    share = phase.size_bytes / store.capacity_bytes if store.capacity_bytes else 1.0
    full = min(columns, round(share * columns))
    yield FULL * full, _TOO_MUCH if share > 1 else BAR_INKS["logprob"].border
    texts = [f" {share:4.0%}  {show_bytes(phase.size_bytes)}", *(["on the way"] if phase.transition else [])]
    texts += [f"measured {show_bytes(phase.measured_bytes)}"] if phase.measured_bytes is not None else []
    yield FREE * (columns - full) + ("▶" if share > 1 else "│") + ", ".join(texts), ""


def _beneath(store: MemoryColumn, phase: Phase) -> Iterator[tuple[str, str]]:
    """Yield by how much a phase does not fit, and its parts if it has several."""
    excess, beyond = phase.size_bytes - store.capacity_bytes, phase.size_bytes - store.room_bytes
    if excess > 0:
        yield f"does not fit: {show_bytes(excess)} too much", _TOO_MUCH
    elif beyond > 0:
        yield f"{show_bytes(beyond)} more than a plan may fill", ""
    parts = [f"{clean(role)} {show_bytes(size)}" for role, size in phase.held if size]
    if len(parts) > 1:
        yield " · ".join(parts), "dim"
