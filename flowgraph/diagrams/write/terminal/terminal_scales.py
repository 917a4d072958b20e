"""Draw for a terminal what has a scale: lanes of time, and memory by phase."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from flowgraph.cluster.cluster import show_bytes
from flowgraph.diagrams.model.charts import Bar, Lane, Lanes, MemoryChart, Phase, PoolMemory
from flowgraph.diagrams.model.labels import clean
from flowgraph.diagrams.model.ticks import number_text
from flowgraph.diagrams.write.palette import BAR_INKS, STATUS_INKS, TEXT

IDLE, HELD, FREE = "·", "█", "·"
COLUMNS_AT_LEAST = 10  # of bars: fewer show nothing
_BAR_COLUMNS_AT_MOST = 40  # of memory: its words need the rest
_TOO_MUCH = STATUS_INKS["removed"]


def lane_lines(lanes: Lanes, width: int) -> Iterator[Text]:
    """Draw each lane to scale, `│` at the end of each bar and dots where it is idle; beneath, the scale and why.

    A bar too short for its label has as much of it as fits, and one of less than a column takes one where there is
    room.
    """
    labels = [clean(lane.label) + (" (measured)" if lane.measured else "") for lane in lanes.lanes]
    margin = max(map(cell_len, labels), default=0)
    columns = max(width - margin - 1, COLUMNS_AT_LEAST)
    for label, lane in zip(labels, lanes.lanes, strict=True):
        yield Text.assemble(set_cell_size(label, margin), " ", _lane(lane, lanes.end_s, columns))
    yield Text(" " * (margin + 1) + _scale(lanes.end_s, columns))
    for label, lane in zip(labels, lanes.lanes, strict=True):
        yield from _idle(set_cell_size(label, margin), lane, lanes.end_s)


def _lane(lane: Lane, end_s: float, columns: int) -> Text:
    columns_per_s, drawn = columns / end_s if end_s > 0 else 0.0, Text()
    for bar in (each for each in lane.bars if each.kind != "idle"):
        start = max(drawn.cell_len, min(columns, round(bar.start_s * columns_per_s)))
        stop = min(columns, max(start + 1, round(bar.end_s * columns_per_s)))
        drawn.append(IDLE * (start - drawn.cell_len))
        if stop > start:
            drawn.append(_bar(bar, stop - start), f"{TEXT} on {BAR_INKS[bar.kind].fill}")
    return drawn.append(IDLE * (columns - drawn.cell_len))


def _bar(bar: Bar, columns: int) -> str:
    """Write a bar's label in so many columns, the last of them its end."""
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


def _idle(label: str, lane: Lane, end_s: float) -> Iterator[Text]:
    """Say how much of the time a lane is busy, and what it waits for, the longest first."""
    waits: dict[str, float] = {}
    for bar in (each for each in lane.bars if each.kind == "idle"):
        why = clean(bar.about) if bar.about else ""
        waits[why] = waits.get(why, 0.0) + bar.end_s - bar.start_s
    whole = end_s if end_s > 0 else 1.0
    yield Text(f"{label}  busy {1 - sum(waits.values()) / whole:6.1%}")
    for why, seconds in sorted(waits.items(), key=lambda each: -each[1]):
        yield Text(f"{' ' * cell_len(label)}  idle {seconds / whole:6.1%}  {number_text(seconds)} s  {why}")


def memory_lines(chart: MemoryChart, width: int) -> Iterator[Text]:
    """Draw a bar for each phase of each pool, full where it is all that a device has; what does not fit is said."""
    for store in chart.stores:
        room = f", {show_bytes(store.room_bytes)} for a plan" if store.room_bytes != store.capacity_bytes else ""
        yield Text.assemble((clean(store.label), "bold"), f"  {show_bytes(store.capacity_bytes)} a device{room}")
        labels = [("→ " if phase.transition else "  ") + clean(phase.label) for phase in store.phases]
        margin = max(map(cell_len, labels), default=0)
        columns = min(_BAR_COLUMNS_AT_MOST, max(width - margin - 30, COLUMNS_AT_LEAST))
        for label, phase in zip(labels, store.phases, strict=True):
            yield Text.assemble(set_cell_size(label, margin), " ", *_filled(store, phase, columns), _said(store, phase))
            yield from (Text(" " * (margin + 1) + told, look) for told, look in _beneath(store, phase))


def _filled(store: PoolMemory, phase: Phase, columns: int) -> list[tuple[str, str]]:
    share = phase.size_bytes / store.capacity_bytes if store.capacity_bytes else 1.0
    full = min(columns, round(share * columns))
    end = "▶" if share > 1 else "│"
    return [(HELD * full, _TOO_MUCH if share > 1 else BAR_INKS["logprob"].border), (FREE * (columns - full) + end, "")]


def _said(store: PoolMemory, phase: Phase) -> str:
    share = phase.size_bytes / store.capacity_bytes if store.capacity_bytes else 1.0
    said = [f" {share:4.0%}  {show_bytes(phase.size_bytes)}"]
    said += ["on the way"] if phase.transition else []
    said += [f"measured {show_bytes(phase.measured_bytes)}"] if phase.measured_bytes is not None else []
    return ", ".join(said)


def _beneath(store: PoolMemory, phase: Phase) -> Iterator[tuple[str, str]]:
    """Say what does not fit, and list what is held where it is more than one thing."""
    over, beyond = phase.size_bytes - store.capacity_bytes, phase.size_bytes - store.room_bytes
    if over > 0:
        yield f"does not fit: {show_bytes(over)} too much", _TOO_MUCH
    elif beyond > 0:
        yield f"{show_bytes(beyond)} more than a plan may fill", ""
    parts = [f"{clean(name)} {show_bytes(size)}" for name, size in phase.held if size]
    if len(parts) > 1:
        yield " · ".join(parts), "dim"
